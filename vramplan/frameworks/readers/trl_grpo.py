"""TRL's GRPOTrainer and RLOOTrainer: generations, what makes them, and the lengths of their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.frameworks.parsed_config import KeyNames, at_least
from vramplan.frameworks.readers.trainer_arguments import read_dtype
from vramplan.frameworks.readers.trl_trainers import PROMPT_LENGTH, dtype_of_scripts
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import own_reference

CHANGES_LENGTH = ("num_beams", "num_return_sequences", "max_new_tokens", "max_length", "cache_implementation", "n")
"""Keys of `generation_kwargs` that change the memory of a generation."""
GRPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
"""Values of `loss_type` that differ in tensors of one number for each token."""
CUT_UNTIL = {"grpo": "0.26", "rloo": "0.27"}
"""The first version of each that cuts no prompt."""
NAMES: Mapping[str, KeyNames] = {
    "reference": {"none": "beta 0.0"},
    "generate_with": {
        "vllm": "use_vllm true; vllm_mode colocate",
        "vllm_sleep": "use_vllm true; vllm_mode colocate; vllm_enable_sleep_mode true",
        "vllm_server": "use_vllm true; vllm_mode server",
    },
    "vllm_share": "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel": "vllm_tensor_parallel_size",
    "vllm_max_length": "vllm_max_model_length",
    "num_generations": "num_generations",
    "steps_per_generation": "steps_per_generation",
}
"""TRL's keys for the fields that a user may change."""


FORMER_RLOO = ("rloo_k", "sft_model_path", "local_rollout_forward_batch_size")
"""Arguments of the RLOOTrainer that took a policy (TRL 0.13, trainer/rloo_config.py)."""
FORMER = "TRL's former RLOOTrainer, which holds a policy, a reference and a reward model, and is not modelled"


def generation_fields(config: ConfigReader, task: str, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job that GRPO or RLOO decides; `job` has the method, the batch and the number of GPUs.

    Raises:
        UnsupportedError: for a setting that is not modelled.
    """
    loss_type = config.lowercase("loss_type", default="dapo")
    if task == "grpo" and loss_type not in GRPO_LOSSES:
        raise config.unsupported("loss_type")
    for name in FORMER_RLOO if task == "rloo" else ():
        config.require_off(name, why=f"is of {FORMER}")
    for name in ("use_transformers_paged", "use_transformers_continuous_batching", "cache_implementation"):
        config.require_off(name, why="generates with another cache, which is not modelled yet")
    for name in ("entropy_coef", "use_adaptive_entropy"):
        config.require_off(name, why="differentiates the entropy, which is not modelled yet")
    written = config.source.settings.get("generation_kwargs")
    if written is not None and isinstance(written.value, dict):  # what is not known of it is a token, or a temperature
        config.read_keys.add("generation_kwargs")
        names = set(written.value)
    else:
        generation = config.section("generation_kwargs")
        names = set(generation.source.settings) if generation is not None else set()
    if not names.isdisjoint(CHANGES_LENGTH):
        raise config.unsupported("generation_kwargs")
    rewards = _rewards(config, version, job)
    if not at_least(version, "0.20"):
        config.note(
            "warning", "", f"counts entropies of whole logits, which TRL {version} does not compute: needs less"
        )
    fields: dict[str, Any] = {
        "num_generations": config.integer("num_generations", default=8 if task == "grpo" else 2),
        "num_iterations": config.integer("num_iterations", default=1),
    }
    beta = 0.05 if task == "rloo" else 0.0 if at_least(version, "0.19") else 0.04
    has_reference = config.number("beta", default=beta) != 0.0
    if task == "rloo" and not has_reference:
        fields["reference"] = "none"
    elif task == "grpo" and has_reference:
        fields["reference"] = own_reference(job["method"])
    if config.boolean("disable_dropout", default=False) and job["method"] != "full":
        fields["lora_dropout"] = 0.0
    engine = _engine(config, version)
    if task == "rloo":  # which scores completions whatever generated them
        engine.pop("importance_sampling", None)
    lengths = _completions(config, version, CUT_UNTIL[task])
    if engine["generate_with"] in ("vllm", "vllm_sleep"):
        engine |= _longest_text(config, version, CUT_UNTIL[task], lengths)
        if not lengths and "vllm_max_length" in engine:  # vLLM takes no longer prompt with its completion
            length = engine["vllm_max_length"]
            lengths = {"sequence_length": length, "prompt_length": max(0, length - completion_length(config, version))}
    return fields | rewards | _generations(config, job) | engine | lengths


def _rewards(config: ConfigReader, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The model that scores completions on the same GPU, if there is one, and its dtype.

    TRL's scripts load it like the policy since 0.22 (the key dtype, float32 by default since 0.28), in four bits too
    before 1.8, and without arguments before 0.22: in fp32, as transformers 4 does. A script of one's own says itself
    (:func:`vramplan.frameworks.readers.python_trl.reward_model`).
    """
    if config.has("reward_model"):
        own = read_dtype(config, "reward_model_dtype") or "auto"
        dtype = own if config.has("reward_model_dtype") else dtype_of_scripts(version)
        return {"reward_model": config.string("reward_model"), "reward_dtype": dtype}
    named = [name for name in config.strings("reward_funcs") if "/" in name and config.source.spelling != "python"]
    if named and config.framework == "axolotl":  # a name that no module has (core/trainers/grpo: get_reward_func)
        if len(named) > 1:
            raise config.unsupported("reward_funcs", "with several models is not modelled; one reward model is")
        return {"reward_model": named[0], "reward_dtype": "auto"}
    if named:
        raise config.unsupported(
            "reward_funcs", f"with {named[0]}: a reward model is named by reward_model_name_or_path in TRL's scripts"
        )
    if not config.has("reward_model_name_or_path"):
        return {}
    name = config.string("reward_model_name_or_path")
    quantizes = job.get("quantize", "none") != "none"
    if quantizes and at_least(version, "0.22") and not at_least(version, "1.8"):
        raise config.unsupported(
            "reward_model_name_or_path", f"with a quantized policy is not modelled: TRL {version} quantizes both"
        )
    if at_least(version, "0.28") or (at_least(version, "0.22") and config.has("dtype", "torch_dtype")):
        return {"reward_model": name, "reward_dtype": read_dtype(config, "dtype", "torch_dtype") or _own(config, job)}
    return {"reward_model": name, "reward_dtype": "fp32"}


def _own(config: ConfigReader, job: Mapping[str, Any]) -> str:
    """The dtype where none is given: TRL's float32; "auto" is the checkpoint's."""
    return "auto" if config.has("dtype", "torch_dtype") else str(job["dtype"])


def _generations(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, int]:
    """Micro-batches of a generation (grpo_config.py: __post_init__)."""
    if not config.has("generation_batch_size"):
        steps = config.integer("steps_per_generation", default=0, least=0)
        return {"steps_per_generation": steps} if steps else {}
    if config.has("steps_per_generation"):
        raise config.invalid(("generation_batch_size",), "either generation_batch_size or steps_per_generation")
    size = config.integer("generation_batch_size", default=1)
    at_once = job["micro_batch_size"] * job.get("num_gpus", 1)
    if size % at_once:
        raise config.invalid(("generation_batch_size",), f"a multiple of the {at_once} samples of a forward")
    return {"steps_per_generation": size // at_once}


def _engine(config: ConfigReader, version: str) -> dict[str, Any]:
    """What generates: ``generate``, or vLLM by a server (the default before 1.0) or in the training processes."""
    if not config.boolean("use_vllm", default=False):
        return {"generate_with": "transformers"}
    mode = config.lowercase("vllm_mode", default="colocate" if at_least(version, "1.0") else "server")
    if mode not in ("colocate", "server"):
        raise config.invalid(("vllm_mode",), "colocate or server")
    served = next((name for name in ("vllm_server_base_url", "vllm_server_host") if config.has(name)), None)
    if not config.has("vllm_mode") and served is not None and mode == "colocate":
        config.note(
            "warning", served, "has no effect without vllm_mode server: vLLM runs in the training processes (colocate)"
        )
    elif not config.has("vllm_mode"):
        config.note("default", "vllm_mode", f"not set: {mode}")
    corrects = at_least(version, "0.23") and config.boolean("vllm_importance_sampling_correction", default=True)
    sampling = {"importance_sampling": corrects}
    if mode == "server":
        return {"generate_with": "vllm_server"} | sampling
    sleeps = at_least(version, "0.23") and config.boolean("vllm_enable_sleep_mode", default=False)
    if not config.has("vllm_gpu_memory_utilization"):
        config.note("default", "vllm_gpu_memory_utilization", "not set: 0.3")
    return sampling | {
        "generate_with": "vllm_sleep" if sleeps else "vllm",
        "vllm_share": config.number("vllm_gpu_memory_utilization", default=0.3),
        "vllm_tensor_parallel": config.integer("vllm_tensor_parallel_size", default=1),
    }


def _longest_text(config: ConfigReader, version: str, cut_until: str, lengths: Mapping[str, int]) -> dict[str, int]:
    """What vLLM's keys and values are for: prompt and completion while TRL cut prompts, the model's positions since."""
    if not at_least(version, cut_until):
        return {"vllm_max_length": lengths["sequence_length"]} if lengths else {}
    if config.has("vllm_max_model_length") and not config.is_null("vllm_max_model_length"):
        return {"vllm_max_length": config.integer("vllm_max_model_length", default=1)}
    config.note("default", "vllm_max_model_length", "not set: vLLM holds a text as long as the model's positions")
    return {}


def completion_length(config: ConfigReader, version: str) -> int:
    """Tokens of a completion: 256 by default before 1.10, 512 since."""
    if config.is_null("max_completion_length"):
        raise config.unsupported("max_completion_length", "without a limit is not modelled; give a number")
    return config.integer("max_completion_length", default=512 if at_least(version, "1.10") else 256)


def _completions(config: ConfigReader, version: str, cut_until: str) -> dict[str, Any]:
    """Tokens of a prompt with its completion; open where TRL cuts no prompt, or if nothing limits it."""
    completion = completion_length(config, version)
    if not config.has("max_completion_length"):
        config.note("default", "max_completion_length", f"not set: {completion}")
    if at_least(version, cut_until):
        if config.has("max_prompt_length"):
            config.note("warning", "max_prompt_length", f"has no effect: TRL {version} does not cut prompts")
        return {}
    if config.is_null("max_prompt_length"):
        return {}
    prompt = config.integer("max_prompt_length", default=PROMPT_LENGTH)
    if not config.has("max_prompt_length"):
        config.note("default", "max_prompt_length", f"not set: {PROMPT_LENGTH}")
    return {"prompt_length": prompt, "sequence_length": prompt + completion}


def note_evaluation(config: ConfigReader, job: Mapping[str, Any]) -> None:
    """An evaluation generates too; one of no more completions than training generates at a time needs no more."""
    if config.lowercase("eval_strategy", default="no") == "no":
        return
    size = config.integer("per_device_eval_batch_size", default=8)
    if size > job["micro_batch_size"]:
        config.note(
            "doubt",
            "per_device_eval_batch_size",
            f"{size} completions are generated and scored at a time in an evaluation, which is not counted",
        )
