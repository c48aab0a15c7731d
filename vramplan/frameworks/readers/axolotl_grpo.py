"""axolotl's ``rl: grpo`` (0.19.0: core/trainers/grpo): its section ``trl:`` as the settings of TRL's GRPOTrainer."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.trl_grpo import completion_length
from vramplan.frameworks.readers.trl_tasks import task_fields
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue

OTHER_TRAINERS = ("use_data_producer", "async_prefetch", "streaming_partial_batch", "vllm_lora_sync", "rollout_func")
"""Keys of ``trl:`` that choose a trainer of axolotl's own, or another way to generate."""
UNMODELLED = ("sync_ref_model", "off_policy_mask_threshold", "replay_recompute_logps")
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
    for name in (*OTHER_TRAINERS, *UNMODELLED):
        trl.require_off(name)
    for name in ("batch_flattening", "rl_adapter_ref_model"):
        config.require_off(name)
    if trl.number("beta", default=config.number("rl_beta", default=0.0)):
        key = "beta" if trl.has("beta") else "rl_beta"
        raise (trl if trl.has("beta") else config).unsupported(
            key,
            "takes a reference that is not modelled yet: TRL copies axolotl's adapters, or loads a second model in"
            " fp32; without it (0) it is",
        )
    fields = task_fields(trl, "grpo", version, job)
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
    trl.read_keys.update(("reward_funcs", "reward_weights", "temperature", "top_p", "top_k", "log_completions"))
    config.notes += [note for note in trl.notes if note not in config.notes]
    if job.get("quantize", "none") != "none":
        fields["lora_dtype"] = "bf16"  # TRL casts the adapters of a quantized model
    return fields


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
    """The section ``trl:`` with vLLM's share and tensor parallelism of the section ``vllm:``.

    Raises:
        ConfigError: if there is no such section.
    """
    trl, vllm = config.section("trl"), config.section("vllm")
    if trl is None:
        raise ConfigError(f"{config.place('rl')}: rl: grpo without the section trl: axolotl has no reward function")
    settings = dict(trl.source.settings)
    for name in OF_VLLM:
        if trl.has(name):
            raise trl.unsupported(name, f"is no key of this section: axolotl reads vllm.{name.removeprefix('vllm_')}")
    if trl.lowercase("vllm_mode", default="") == "colocate":
        share = VLLM_SHARE if vllm is None else vllm.number("gpu_memory_utilization", default=VLLM_SHARE)
        settings["vllm_gpu_memory_utilization"] = ConfigValue(share, config.place("vllm"))
        if vllm is not None and vllm.has("tensor_parallel_size"):
            parallel = vllm.integer("tensor_parallel_size", default=1)
            settings["vllm_tensor_parallel_size"] = ConfigValue(parallel, config.place("vllm"))
    source = config.source
    return ConfigReader(ConfigSource(settings, source.environment, (), source.where), config.framework)
