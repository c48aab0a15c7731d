"""DeepSpeed's JSON: by itself, or named by another framework's configuration."""

from __future__ import annotations

import re
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, nearest_names
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.named_files import settings_named
from vramplan.frameworks.settings import TRUE, ConfigReader, ConfigSource, ConfigValue, Note
from vramplan.inputs.job_values import engine_casts
from vramplan.inputs.sharding import DEEPSPEED_SIZES

PACKAGE = "deepspeed"
"""The name of its keys in unsupported_keys.json."""
PRESET = re.compile(r"(?:default-)?zero-?([0123])([-_]offload)?")
"""ms-swift's names of the configurations that it ships (swift/config/zero*.json)."""
PRESET_BUCKET = 200_000_000
"""Their reduce_bucket_size at stages 1 and 2; at 3 it is "auto"."""
SIZES = {
    "reduce_bucket_size": DEEPSPEED_SIZES["reduce_bucket_size"],
    "stage3_prefetch_bucket_size": DEEPSPEED_SIZES["prefetch_bucket_size"],
    "stage3_param_persistence_threshold": DEEPSPEED_SIZES["param_persistence_threshold"],
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}
"""Sizes in elements -> DeepSpeed's default (0.19, runtime/zero/config.py)."""
SHORT_NAMES = tuple(name.removeprefix("stage3_") for name in SIZES)
"""Names without stage3_, which DeepSpeed takes too (runtime/config_utils.py: populate_by_name); axolotl's files do."""
MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "contiguous_gradients": (True,),
    "reduce_scatter": (True,),
    "zero_hpz_partition_size": (1,),
    "zero_quantized_weights": (),
    "zero_quantized_gradients": (),
    "zero_quantized_nontrainable_weights": (),
    "mics_shard_size": (-1,),
    "use_all_reduce_for_fetch_params": (),
    "cpu_offload": (),
    "cpu_offload_param": (),
    "memory_efficient_linear": (True,),
    "parameter_alignment": (),
    "zenflow": (),
    "zeropp_loco_param": (),
}
"""Keys that must be off or have one of these values."""
KNOWN = {*SIZES, *SHORT_NAMES, *MODELLED_VALUES} | set(
    """
    stage overlap_comm offload_optimizer offload_param allgather_bucket_size allgather_partitions allgather_sequential
    compute_grad_norm cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks ignore_unused_parameters
    leaf_module legacy_stage1 load_from_fp32_weights log_trace_cache_warnings mics_hierarchical_params_gather
    override_module_apply pipeline_loading_checkpoint round_robin_gradients save_muon_momentum_buffer_in_memory
    gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save
    stage3_gather_fp16_weights_on_model_save
    stage3_allgather_sequential stage3_model_persistence_threshold stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce
    """.split()  # noqa: SIM905
)
"""Every key of zero_optimization that DeepSpeed 0.19 takes."""
OPTIMIZERS = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused"}
"""DeepSpeed's own optimizers: fused, with fp32 states."""
BATCH = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Keys that must be auto or equal the Trainer's own (integrations/deepspeed.py: fill_match)."""


def referenced(config: ConfigReader) -> dict[str, Any]:
    """Fields of the job from the key `deepspeed`: a preset, a file, or JSON in place; empty if it is not set.

    Raises:
        ConfigError: for a file that does not exist or cannot be parsed.
        UnsupportedError: for settings that are not modelled.
    """
    value = config.get("deepspeed")
    if value is None:
        return {}
    preset_match = PRESET.fullmatch(str(value.value).strip())
    if preset_match is not None:
        stage = int(preset_match[1])
        return preset(stage, "none" if not preset_match[2] else "all" if stage == 3 else "optimizer")
    settings = settings_named(config, value, "deepspeed")
    section = ConfigReader(ConfigSource(settings, {}, (), str(value.value)), "DeepSpeed")
    refuse_unmodelled(ConfigReader(section.source, PACKAGE))
    for name, field in BATCH.items():
        if section.lowercase(name, default="auto") != "auto":
            config.required_values[field] = ConfigValue(section.integer(name, default=1), f"{value.value}: {name}")
    _check_half_precision(section, config)
    job = fields(section, value)
    config.notes += section.notes
    return job


def preset(stage: int, offload: str) -> dict[str, Any]:
    """Fields of the job from a configuration that ms-swift ships."""
    zero = {} if stage == 3 else {"reduce_bucket_size": PRESET_BUCKET}
    return {"strategy": f"zero{stage}", "zero": zero, "offload": offload}


def cast(job: dict[str, Any]) -> None:
    """Apply DeepSpeed's cast of the whole model to half precision; it keeps fp32 copies and runs no autocast."""
    if str(job.get("strategy")).startswith("zero"):
        if job.get("autocast", "none") != "none":
            job["dtype"] = job["autocast"]
        job["autocast"] = "none"
        if job["method"] != "full" and engine_casts(job["strategy"], job.get("quantize", "none")):
            job["lora_dtype"] = job["dtype"]


def _check_half_precision(section: ConfigReader, config: ConfigReader) -> None:
    """Refuse a half-precision dtype that is neither auto nor the Trainer's: transformers stops there (fill_match)."""
    for name in ("bf16", "fp16"):
        half = section.section(name)
        is_enabled = "auto" if half is None else half.lowercase("enabled", default="false")
        if config.lowercase(name, default="false") == "auto":  # axolotl's
            continue
        expected = config.boolean(name, default=False)
        if half is not None and is_enabled != "auto" and (is_enabled in TRUE) != expected:
            raise ConfigError(
                f"{section.source.where}: {name}.enabled is {is_enabled}, and the trainer's {name} is"
                f" {str(expected).lower()}: training stops at that; write auto"
            )


def fields(section: ConfigReader, value: ConfigValue) -> dict[str, Any]:
    """Fields of the job from a DeepSpeed configuration."""
    zero = section.section("zero_optimization")
    if zero is None:
        return _strategy(0, value) | _optimizer(section, 0)
    stage = zero.integer("stage", default=0, least=0)
    job = _strategy(stage, value)
    for name, harmless in MODELLED_VALUES.items():
        zero.require_off(name, *harmless)
    sizes = {
        name.removeprefix("stage3_"): _elements(zero, name)
        for name in SIZES
        if stage == 3 or name == "reduce_bucket_size"
    }
    job["zero"] = {name: size for name, size in sizes.items() if size is not None}
    if (
        sizes.get("sub_group_size") == 0
    ):  # each weight by itself, as with 1 (runtime/zero/stage3.py: _create_fp16_sub_groups)
        job["zero"]["sub_group_size"] = 1
    job["zero"]["overlap_comm"] = zero.boolean("overlap_comm", default=stage == 3)
    job["offload"] = _offload(zero)
    for name, unknown in zero.source.settings.items():
        if name not in KNOWN:
            near = nearest_names(name, KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            text = f"DeepSpeed's zero_optimization does not know this key{hint}"
            section.notes.append(Note("unknown", name, text, unknown.place))
    data_types = section.section("data_types")
    if data_types is not None:
        data_types.require_off("grad_accum_dtype", "bf16", "fp16")
    return job | _optimizer(section, stage)


def stage_defaults(stage: int) -> dict[str, Any]:
    """Fields of the job if only the ZeRO stage is set, as accelerate passes it on (DeepSpeedPlugin)."""
    config = ConfigReader(ConfigSource({"zero_optimization": ConfigValue({"stage": stage}, "")}), "DeepSpeed")
    return fields(config, ConfigValue(stage, ""))


def _elements(zero: ConfigReader, name: str) -> int | None:
    """A size in elements; None for auto, which transformers computes from the hidden size."""
    names = (name, name.removeprefix("stage3_"))
    return None if zero.lowercase(*names, default="") == "auto" else zero.integer(*names, default=SIZES[name], least=0)


def _offload(zero: ConfigReader) -> str:
    """What is offloaded to the host."""
    offload = "none"
    for name, state in (("offload_optimizer", "optimizer"), ("offload_param", "all")):
        target = zero.section(name)
        device = "none" if target is None else target.lowercase("device", default="none")
        if device not in ("none", "cpu") and target is not None:
            raise target.unsupported("device")
        offload = state if device == "cpu" else offload
    return offload


def _optimizer(section: ConfigReader, stage: int) -> dict[str, Any]:
    """DeepSpeed's own optimizer, which replaces the framework's."""
    optimizer = section.section("optimizer")
    if optimizer is None:
        return {}
    name = optimizer.lowercase("type", default="adamw")
    if name not in OPTIMIZERS:
        raise optimizer.unsupported("type")
    if stage == 0:  # FP16_Optimizer, with flat copies
        raise optimizer.unsupported("type", "at stage 0 is not modelled yet; leave the optimizer to the trainer")
    return {"optimizer": OPTIMIZERS[name]}


def _strategy(stage: int, value: ConfigValue) -> dict[str, Any]:
    if stage not in (0, 1, 2, 3):
        raise UnsupportedError(f"{value.place}: deepspeed: ZeRO stage {stage} is not modelled")
    return {"strategy": f"zero{stage}"}
