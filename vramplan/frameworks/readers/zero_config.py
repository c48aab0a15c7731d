"""DeepSpeed's JSON: alone, or named by the others."""

from __future__ import annotations

import re
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, nearest_names
from vramplan.frameworks.settings import TRUE, ConfigReader, ConfigSource, ConfigValue, Note
from vramplan.frameworks.syntax.config_files import named
from vramplan.inputs.job import engine_casts

PRESET = re.compile(r"(?:default-)?zero-?([0123])([-_]offload)?")
"""ms-swift's names for the configurations that it ships (swift/config/zero*.json)."""
PRESET_BUCKET = 200_000_000
"""Their reduce_bucket_size at stages 1 and 2; at 3 it is "auto"."""
SIZES = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}
"""Numbers of elements, and what DeepSpeed takes where they are not set (0.19, runtime/zero/config.py)."""
ONLY: dict[str, tuple[Any, ...]] = {
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
"""What is modelled with these values alone."""
KNOWN = {*SIZES, *ONLY} | set(
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
"""DeepSpeed's own optimizers: one kernel, fp32 states."""
BATCH = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Numbers that transformers wants to be its own, or auto (integrations/deepspeed.py: fill_match)."""


def referenced(keys: ConfigReader) -> dict[str, Any]:
    """What the key `deepspeed` brings: a preset, a file, or JSON in place.

    Raises:
        ConfigError: for a file that is not there, or broken.
        UnsupportedError: for what is not modelled in it.
    """
    found = keys.setting("deepspeed")
    if found is None:
        return {}
    shipped = PRESET.fullmatch(str(found.value).strip())
    if shipped is not None:
        stage = int(shipped[1])
        return preset(stage, "none" if not shipped[2] else "all" if stage == 3 else "optimizer")
    own = ConfigReader(ConfigSource(named(found, keys.folder, "deepspeed"), {}, (), str(found.value)), "DeepSpeed")
    for name, field in BATCH.items():
        if own.text(name, default="auto") != "auto":
            keys.pinned[field] = ConfigValue(own.count(name, default=1), f"{found.value}: {name}")
    _half(own, keys)
    job = fields(own, found)
    keys.notes += own.notes
    return job


def preset(stage: int, offload: str) -> dict[str, Any]:
    """The fields of a job in a configuration that ms-swift ships."""
    zero = {} if stage == 3 else {"reduce_bucket_size": PRESET_BUCKET}
    return {"strategy": f"zero{stage}", "zero": zero, "offload": offload}


def cast(job: dict[str, Any]) -> None:
    """DeepSpeed casts the whole model to the half-precision type and keeps fp32 copies itself; nothing is autocast."""
    if str(job.get("strategy")).startswith("zero"):
        if job.get("autocast", "none") != "none":
            job["dtype"] = job["autocast"]
        job["autocast"] = "none"
        if job["method"] != "full" and engine_casts(job["strategy"], job.get("quantize", "none")):
            job["lora_dtype"] = job["dtype"]


def _half(own: ConfigReader, keys: ConfigReader) -> None:
    """Refuse a half-precision type that is fixed and not the trainer's: transformers stops there (fill_match)."""
    for name in ("bf16", "fp16"):
        part = own.part(name)
        said = "auto" if part is None else part.text("enabled", default="false")
        wanted = keys.flag(name, default=False)
        if part is not None and said != "auto" and (said in TRUE) != wanted:
            raise ConfigError(
                f"{own.source.where}: {name}.enabled is {said}, and the trainer's {name} is"
                f" {str(wanted).lower()}: training stops at that; write auto"
            )


def fields(own: ConfigReader, found: ConfigValue) -> dict[str, Any]:
    """The fields of a job in a DeepSpeed configuration."""
    zero = own.part("zero_optimization")
    if zero is None:
        return _stage(0, found) | _optimizer(own, 0)
    stage = zero.count("stage", default=0, least=0)
    job = _stage(stage, found)
    for name, harmless in ONLY.items():
        zero.only(name, *harmless)
    sizes = {
        name.removeprefix("stage3_"): _elements(zero, name)
        for name in SIZES
        if stage == 3 or name == "reduce_bucket_size"
    }
    job["zero"] = {name: size for name, size in sizes.items() if size is not None}
    job["zero"]["overlap_comm"] = zero.flag("overlap_comm", default=stage == 3)
    job["offload"] = _offload(zero)
    for name, one in zero.source.settings.items():
        if name not in KNOWN:
            near = nearest_names(name, KNOWN, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            said = f"DeepSpeed's zero_optimization does not know this key{meant}"
            own.notes.append(Note("unknown", name, said, one.place))
    types = own.part("data_types")
    if types is not None:
        types.only("grad_accum_dtype", "bf16", "fp16")
    return job | _optimizer(own, stage)


def unset(stage: int) -> dict[str, Any]:
    """What DeepSpeed takes where the stage alone is said, as accelerate passes it on (DeepSpeedPlugin)."""
    keys = ConfigReader(ConfigSource({"zero_optimization": ConfigValue({"stage": stage}, "")}), "DeepSpeed")
    return fields(keys, ConfigValue(stage, ""))


def _elements(zero: ConfigReader, name: str) -> int | None:
    """A number of elements; None for auto, which transformers fills in by the model's width."""
    return None if zero.text(name, default="") == "auto" else zero.count(name, default=SIZES[name], least=0)


def _offload(zero: ConfigReader) -> str:
    """What the host keeps."""
    found = "none"
    for name, what in (("offload_optimizer", "optimizer"), ("offload_param", "all")):
        part = zero.part(name)
        device = "none" if part is None else part.text("device", default="none")
        if device not in ("none", "cpu") and part is not None:
            raise part.refuse("device")
        found = what if device == "cpu" else found
    return found


def _optimizer(own: ConfigReader, stage: int) -> dict[str, Any]:
    """An optimizer of DeepSpeed's own, which replaces the framework's."""
    part = own.part("optimizer")
    if part is None:
        return {}
    name = part.text("type", default="adamw")
    if name not in OPTIMIZERS:
        raise part.refuse("type")
    if stage == 0:  # FP16_Optimizer, with flat copies
        raise part.refuse("type", "at stage 0 is not modelled yet; leave the optimizer to the trainer")
    return {"optimizer": OPTIMIZERS[name]}


def _stage(stage: int, found: ConfigValue) -> dict[str, Any]:
    if stage not in (0, 1, 2, 3):
        raise UnsupportedError(f"{found.place}: deepspeed: ZeRO stage {stage} is not modelled")
    return {"strategy": f"zero{stage}"}
