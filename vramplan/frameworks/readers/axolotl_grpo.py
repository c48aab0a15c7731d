"""axolotl's ``rl: grpo`` and ``gdpo`` (0.19.0: core/trainers/grpo): its section ``trl:`` as TRL's GRPOTrainer reads it.

GDPO normalizes the rewards of several functions one by one; nothing else differs (core/builders/rl.py).
"""

from __future__ import annotations

import difflib
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.trl_grpo import completion_length
from vramplan.frameworks.readers.trl_tasks import task_fields
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue, Note

OTHER_TRAINERS = ("use_data_producer", "async_prefetch", "streaming_partial_batch", "vllm_lora_sync", "rollout_func")
"""Keys of ``trl:`` that choose a trainer of axolotl's own, or another way to generate."""
UNMODELLED = ("sync_ref_model", "off_policy_mask_threshold", "use_liger_loss")
READ = (
    "beta", "max_completion_length", "use_vllm", "vllm_mode", "vllm_enable_sleep_mode", "num_generations",
    "generation_batch_size", "num_iterations", "loss_type", "reward_funcs", "entropy_coef", "use_adaptive_entropy",
    "vllm_importance_sampling_correction", "vllm_server_host",
)  # fmt: skip
"""Keys of ``trl:`` that reach TRL's GRPOTrainer and change memory."""
HARMLESS = (
    "vllm_server_port", "vllm_server_timeout", "vllm_guided_decoding_regex", "reward_weights",
    "log_completions", "num_completions_to_print", "log_multimodal", "importance_sampling_level", "scale_rewards",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "epsilon", "epsilon_high",
    "mask_truncated_completions", "multi_objective_aggregation", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_cap", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max",
    "use_bias_correction_kl", "ref_model_mixup_alpha", "ref_model_sync_steps", "entropy_target", "entropy_coef_delta",
    "entropy_coef_min", "entropy_coef_max", "reward_processing_classes", "chat_template_kwargs", "prefetch_depth",
    "vllm_sync_interval", "streaming_min_groups", "reward_num_workers", "replay_buffer_size",
    "replay_recompute_logps", "reroll_start_fraction", "reroll_max_groups", "skip_zero_advantage_batches",
)  # fmt: skip
"""Keys that it takes, and that change no memory, or none without one of `OTHER_TRAINERS` (utils/schemas/trl.py)."""
NOT_PASSED = ("generation_kwargs",)
"""Keys that it takes and hands to nothing."""
OF_VLLM = ("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_max_model_len")
"""Keys that the section trl had before the section vllm took them."""
VLLM_SHARE = 0.9
"""gpu_memory_utilization of the section ``vllm:`` (utils/schemas/vllm.py)."""


def grpo_fields(config: ConfigReader, version: str, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of a job that GRPO decides; `version` is TRL's.

    Raises:
        UnsupportedError: for a setting that is not modelled.
    """
    trl = _as_trl(config)
    section = config.section("trl")
    assert section is not None
    for name in (*OTHER_TRAINERS, *UNMODELLED):
        section.require_off(name, why="is not modelled yet; without it the rest is read")
    _note_keys(config, section)
    for name in ("batch_flattening", "rl_adapter_ref_model"):
        config.require_off(name)
    refers = trl.number("beta", default=config.number("rl_beta", default=0.0)) != 0.0
    if refers and job["method"] == "full":
        key = "beta" if trl.has("beta") else "rl_beta"
        raise (trl if trl.has("beta") else config).unsupported(
            key,
            "takes a reference that is not modelled yet: TRL loads a second model in fp32; without it (0) it is",
        )
    fields = task_fields(trl, "grpo", version, job)
    if refers:  # TRL copies the adapters that axolotl made (core/builders/rl.py: no peft_config)
        fields["reference"] = "frozen_adapters"
    if not trl.has("max_completion_length"):
        raise UnsupportedError(
            f"{config.source.where}: trl.max_completion_length is not set: axolotl then hands TRL no limit, which is"
            " not modelled; give a number"
        )
    variables = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    if fields["generate_with"] == "vllm_sleep" and not any(map(config.variable, variables)):
        raise ConfigError(
            f"{config.source.where}: trl.vllm_enable_sleep_mode: vLLM stops at expandable segments, which axolotl's"
            " command switches on; set PYTORCH_ALLOC_CONF=expandable_segments:False in its environment"
        )
    config.notes += [note for note in trl.notes if note not in config.notes]
    if job.get("quantize", "none") != "none":
        fields["lora_dtype"] = "bf16"  # TRL casts the adapters of a quantized model
    return fields


def _note_keys(config: ConfigReader, section: ConfigReader) -> None:
    """Note keys of ``trl:`` that change nothing, and those that axolotl drops, as it does not know them.

    Raises:
        ConfigError: for a key of ``trl:`` that is one of another section.
    """
    passed = (*READ, *HARMLESS, *OTHER_TRAINERS, *UNMODELLED, *OF_VLLM)
    for name, value in section.source.settings.items():
        if name in HARMLESS:
            config.note("ignored", f"trl.{name}", "does not change memory")
        elif name not in passed and not section.is_off(name):
            near = difflib.get_close_matches(name, passed, 1, 0.75)
            hint = f"; did you mean {near[0]}?" if near else ""
            known = "hands it to nothing" if name in NOT_PASSED else "does not know it"
            text = f"has no effect: axolotl {known} in the section trl{hint}"
            config.notes.append(Note("unknown", f"trl.{name}", text, value.place))


def make_grpo(parsed: ParsedConfig, config: ConfigReader, version: str) -> None:
    """Leave the length of a prompt with its completion open: nothing cuts or drops prompts (utils/data/rl.py)."""
    del parsed.job["sequence_length"]
    parsed.completion_length = completion_length(_as_trl(config), version)
    kept = ("sequence_length", "eval_batch_size")
    parsed.names = {name: keys for name, keys in parsed.names.items() if name not in kept}
    parsed.eval_batch_size = None
    micro_batch = parsed.job["micro_batch_size"]
    evaluates = config.number("val_set_size", default=0.0) > 0 or config.has("test_datasets")
    size = config.integer("eval_batch_size", default=micro_batch)
    if evaluates and size > micro_batch:
        config.note("doubt", "eval_batch_size", f"{size} completions at a time in an evaluation are not counted")


def _as_trl(config: ConfigReader) -> ConfigReader:
    """What axolotl hands to TRL of the section ``trl:``, with vLLM's share and tensor parallelism of ``vllm:``.

    Raises:
        ConfigError: if there is no such section.
    """
    trl, vllm = config.section("trl"), config.section("vllm")
    if trl is None:
        raise ConfigError(f"{config.place('rl')}: rl: grpo without the section trl: axolotl has no reward function")
    settings = {name: value for name, value in trl.source.settings.items() if name in READ}
    if misplaced := {name: f"vllm.{name.removeprefix('vllm_')}" for name in OF_VLLM if trl.has(name)}:
        errors = "; ".join(
            str(trl.unsupported(name, f"is no key of this section: axolotl reads {own}"))
            for name, own in misplaced.items()
        )
        pairs = [f"trl.{name}=" for name in misplaced]
        pairs += [f"{own}={trl.string(name)}" for name, own in misplaced.items()]
        changes = " ".join(setting("set", pair) for pair in pairs)
        raise UnsupportedError(
            f"{errors}; {changes} estimates the run with {'it' if len(misplaced) == 1 else 'them'} there"
        )
    if trl.lowercase("vllm_mode", default="") == "colocate":
        share = VLLM_SHARE if vllm is None else vllm.number("gpu_memory_utilization", default=VLLM_SHARE)
        settings["vllm_gpu_memory_utilization"] = ConfigValue(share, config.place("vllm"))
        if vllm is not None and vllm.has("tensor_parallel_size"):
            parallel = vllm.integer("tensor_parallel_size", default=1)
            settings["vllm_tensor_parallel_size"] = ConfigValue(parallel, config.place("vllm"))
    source = config.source
    return ConfigReader(ConfigSource(settings, source.environment, (), source.where), config.framework)
