"""ms-swift's ``swift rlhf --rlhf_type grpo`` (3.12 and 4.6: rlhf_args.py, rlhf_trainers/grpo_trainer.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.nearest import estimate_command, refuse_task
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least
from vramplan.frameworks.readers.ms_swift_rollout import (
    HERE,
    OFFLOADS,
    ROLLOUT_NAMES,
    completion_length,
    engine_fields,
    generation_fields,
    length_fields,
)
from vramplan.frameworks.readers.ms_swift_rows import ROWS, row_field, shared_fields
from vramplan.frameworks.readers.ms_swift_tasks import check_reference, reference_adapters
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import own_reference

SINCE = "3.12"
"""The first version whose trainer was read."""
OWN_LOG_PROBS = "4.4"
"""The first version whose own function takes all log-probabilities; before, TRL's did where it could, which copies the
logits to divide them by the temperature (trl 0.15 to 0.29, all that those versions take)."""
IN_PLACE = "4.1"
"""The first version whose own function, which takes rows of several samples, divides the logits where they lie."""
FROZEN_TOWERS = "4.6"
"""The first version in which a frozen vision tower has no graph; before, checkpointing keeps each layer's input."""
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "real", "fipo")
"""Values of loss_type, which differ in tensors of a few numbers for each token; so do other settings of advantages."""
_NOT_YET = "with rlhf_type grpo is not modelled yet"
_BESIDE = "loads a model beside the trained one, which is not modelled yet; reward_funcs load none"
NOT_MODELLED: Mapping[str, str] = {
    "chord_sft_dataset": _NOT_YET,
    **dict.fromkeys(("reward_model", "teacher_model"), _BESIDE),
}
"""Settings that would move memory -> why they are refused."""
_UNDER = {
    "fsdp": "under fsdp is not modelled yet; nearest: deepspeed zero3",
    "device_map": "by one process that sees {0} GPUs and spreads the layers over them is not modelled; a process for"
    " each GPU is: NPROC_PER_NODE={0}",
}
SERVER = "teacher_model_server"
"""Where a teacher on other GPUs answers."""
NAMES: Mapping[str, KeyNames] = {
    "reference": {"none": "beta 0.0"},
    "batches": {"padded": "padding_free false"},
    **ROLLOUT_NAMES,
    "num_generations": "num_generations",
}
"""Its keys for the fields that a user may change."""


def is_grpo(config: ConfigReader) -> bool:
    """Whether the command is ``swift rlhf --rlhf_type grpo``."""
    return config.lowercase("rlhf_type", default="") == "grpo"


def train_for(parsed: ParsedConfig, config: ConfigReader, version: str) -> None:
    """Make a configuration that has been read for supervised fine-tuning that of GRPO.

    Raises:
        UnsupportedError: for a setting that is not modelled.
        ConfigError: for what ms-swift stops at.
    """
    job = parsed.job
    if not at_least(version, SINCE):
        raise refuse_task(config, "rlhf_type", "grpo", parsed.model, job)
    if job.get("strategy") in ("fsdp", "device_map"):
        raise config.unsupported("rlhf_type", _UNDER[job["strategy"]].format(job["num_gpus"]))
    for name, why in NOT_MODELLED.items():
        if why == _BESIDE and not config.is_off(name):
            whose = "TRL's own" if config.has("reward_model") else "TRL's own without it"
            raise config.unsupported(name, f"{why}; nearest, {whose}: {_nearest(config, parsed)}")
        config.require_off(name, why=why)
    if not at_least(version, IN_PLACE):
        newer = setting("framework_version", IN_PLACE)
        for name in ROWS:
            config.require_off(name, why=f"with rlhf_type grpo before {IN_PLACE} is not modelled; nearest: {newer}")
    if config.lowercase("loss_type", default="grpo") not in LOSSES:
        raise config.unsupported("loss_type", f"is not modelled yet; modelled: {', '.join(LOSSES)}")
    rows = row_field(config)
    since = IN_PLACE if rows["batches"] == "packed" else OWN_LOG_PROBS
    fields: dict[str, Any] = {
        "task": "grpo",
        "loss": "logits_to_keep" if at_least(version, since) else "standard",
        **rows,
        "num_generations": config.integer("num_generations", default=8),
        "num_iterations": config.integer("num_iterations", default=1),
        "gradient_accumulation_steps": config.integer("gradient_accumulation_steps", default=1),
    }
    if job.get("offload") == "all" and fields["loss"] == "standard" and config.boolean("use_vllm", default=False):
        newer = setting("framework_version", "4.6.0")
        raise config.unsupported("deepspeed", f"with rlhf_type grpo before {since} is not modelled; nearest: {newer}")
    if not config.is_off(SERVER):  # whose log-probabilities come back: a number for each token (grpo_trainer.py)
        config.note("default", SERVER, "the teacher is on other GPUs")
    elif fields["num_generations"] == 1:
        raise ConfigError(f"{config.place('num_generations')}: ms-swift stops at 1 without a teacher")
    wants_entropy = config.boolean("log_entropy", default=False)
    wants_entropy |= config.number("top_entropy_quantile", default=1.0) < 1.0
    fields["entropy_graph"] = wants_entropy and fields["loss"] == "logits_to_keep"  # TRL's function has no graph
    if config.boolean("use_liger_kernel", "use_liger", default=False):
        _check_liger(config, version, wants_entropy)
        fields["loss"] = "liger_logits_to_keep"
    config.read_keys.add("ref_model")
    if config.number("beta", default=0.04) != 0.0:
        fields["reference"] = own_reference(job["method"])
        check_reference(config, job)
    fields |= reference_adapters(config, "grpo", job)
    if config.boolean("disable_dropout", default=False) and job["method"] != "full":
        fields["lora_dropout"] = 0.0
    if job.get("strategy") == "zero3":  # ms-swift sets it (rlhf_trainers/arguments.py)
        fields["zero"] = {**dict(job["zero"]), "prefetch_bucket_size": 0}
    fields |= engine_fields(config, job) | generation_fields(config, job)
    answer = completion_length(config)
    fields |= length_fields(config, job, answer, fields)
    several = fields["num_generations"] % job["micro_batch_size"] and fields["batches"] == "padded"
    if several and "prompt_length" in fields:
        fields["prompt_length"] = 1
        config.note(
            "warning",
            "per_device_train_batch_size",
            "does not divide num_generations: logits of a micro-batch begin where its shortest prompt ends, and are"
            " counted from the first token on",
        )
    shared = shared_fields(config, version, job["num_gpus"], computes_cross_entropy=False)
    job |= fields | shared
    for name in ("gradient_accumulation_steps", "steps_per_generation") if shared else ():
        if name in job:  # of all GPUs that share texts, one after another (grpo_trainer.py: __init__)
            job[name] *= shared["swift"]["sequence_parallel"]
    if "sequence_length" not in fields:
        job.pop("sequence_length", None)
        parsed.completion_length = answer
    foreign = {"sequence_length", "loss", *(("quantize",) if job["generate_with"] in HERE else ())}
    kept = {name: keys for name, keys in parsed.names.items() if name not in foreign}
    parsed.names = {**kept, **NAMES}
    if (parsed.eval_batch_size or 0) > job["micro_batch_size"]:
        config.note(
            "doubt",
            "per_device_eval_batch_size",
            f"{parsed.eval_batch_size} completions are generated and scored at a time in an evaluation, which is not"
            " counted",
        )
    parsed.compared_with_images = at_least(version, FROZEN_TOWERS)
    parsed.task, parsed.rows, parsed.eval_batch_size = "GRPO", "samples", None


def _nearest(config: ConfigReader, parsed: ParsedConfig) -> str:
    """TRL's GRPO with the same settings, and with the first reward model if there is one."""
    fields = {name: one for name, one in parsed.job.items() if name not in ("loss", "batches")} | {"task": "grpo"}
    answer = completion_length(config)
    if "sequence_length" in fields:
        fields |= {"prompt_length": fields["sequence_length"], "sequence_length": fields["sequence_length"] + answer}
    fields["num_generations"] = config.integer("num_generations", default=8)
    if config.has("reward_model"):
        fields["reward_model"] = config.strings("reward_model")[0]
    if config.number("beta", default=0.04):
        fields["reference"] = own_reference(fields["method"])
    return estimate_command(parsed.model, fields)


def _check_liger(config: ConfigReader, version: str, wants_entropy: bool) -> None:
    """What ms-swift stops at with Liger's loss (rlhf_args.py: _check_grpo)."""
    if not at_least(version, OWN_LOG_PROBS):
        raise config.unsupported("use_liger_kernel", f"with rlhf_type grpo before {OWN_LOG_PROBS} is not modelled")
    stops = ["log_entropy or top_entropy_quantile"] if wants_entropy else []
    stops += [name for name in ROWS if not config.is_off(name)]
    stops += [name for name in ("delta", "off_policy_sequence_mask_delta") if config.has(name)]
    if config.lowercase("importance_sampling_level", default="token") not in ("token", "sequence"):
        stops.append("importance_sampling_level sequence_token")
    if config.lowercase("advantage_estimator", default="grpo") != "grpo":
        stops.append("advantage_estimator")
    if stops:
        raise ConfigError(f"{config.place('use_liger_kernel')}: ms-swift stops at it with {', '.join(stops)}")


def grpo_pairs(job: Job) -> Pairs:
    """GRPO of a job, for a command; empty for others.

    Raises:
        UnsupportedError: for a reference that ms-swift does not make by itself.
    """
    if job.task != "grpo":
        return {}
    if job.reference_source not in ("none", own_reference(job.method)):
        raise UnsupportedError(
            f"{setting('for_framework', 'swift')}: {setting('reference', job.reference)} is not written for it"
        )
    prompt = job.prompt_length or 1
    pairs: Pairs = {
        "max_length": prompt,
        "max_completion_length": job.sequence_length - prompt,
        "num_generations": job.num_generations,
        "beta": 0.0 if job.reference_source == "none" else 0.04,
    }
    pairs |= {} if job.steps_per_generation is None else {"steps_per_generation": job.steps_per_generation}
    pairs |= {"num_iterations": job.num_iterations} if job.num_iterations > 1 else {}
    pairs |= {"log_entropy": True} if job.entropy_graph else {}
    pairs |= {"use_liger_kernel": True} if job.loss == "liger_logits_to_keep" else {}
    if job.generate_with == "transformers":
        return pairs
    pairs |= {"use_vllm": True, "vllm_mode": "colocate" if job.generate_with in HERE else "server"}
    pairs |= {} if job.vllm_sync_parts in (None, 1) else {"move_model_batches": job.vllm_sync_parts}
    if job.generate_with not in HERE:
        return pairs
    pairs["vllm_gpu_memory_utilization"] = job.vllm_share
    pairs |= {} if job.vllm_max_length is None else {"vllm_max_model_len": job.vllm_max_length}
    pairs |= {"vllm_tensor_parallel_size": job.vllm_tensor_parallel} if job.vllm_tensor_parallel > 1 else {}
    pairs |= {"sleep_level": 1} if job.generate_with == "vllm_sleep" else {}
    kept = {what: flags for flags, what in OFFLOADS.items()}[job.rollout_offload]
    return pairs | {
        name: True for name, is_on in zip(("offload_model", "offload_optimizer"), kept, strict=True) if is_on
    }
