"""Whether a job can run on a card at all, whoever works out its memory."""

from __future__ import annotations

from vramplan.errors import CannotRunError, ConfigError, UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

LINEAR_EXPERTS = frozenset(
    {
        *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe"),
        *("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4v_moe"),
    }
)
"""Mixtures whose experts were linear layers of their own before transformers 5 (4.57, modeling_<type>.py)."""


def are_linear(spec: ModelSpec, job: Job) -> bool:
    """Whether the job is about experts of linear layers, and the model's were."""
    return job.experts == "linear" and spec.model_type in LINEAR_EXPERTS


def check_job(job: Job, card: Gpu) -> None:
    """Refuse what no estimate models, and what the card cannot run.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
    """
    if job.quantize != "none" and job.method == "full":
        raise ConfigError(f"--quantize {job.quantize} with --method full: quantized weights cannot train")
    if job.modules_to_save and job.method == "full":
        raise ConfigError("modules_to_save has no meaning with --method full: every weight trains")
    if job.saved_dtype and not job.modules_to_save:
        raise ConfigError("saved_dtype is that of modules_to_save, and there are none")
    if job.prepare_for_kbit_training and job.quantize == "none":
        raise ConfigError("prepare_for_kbit_training needs --quantize nf4 or int8: it casts what is not quantized")
    check_sharing(job)
    check_card(job, card)


def check_sharing(job: Job) -> None:
    """Refuse what a strategy cannot do, or what is not modelled of it.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
    """
    zero = job.strategy.startswith("zero")
    if job.offload != "none" and job.strategy in ("ddp", "device_map"):
        raise ConfigError(f"--offload {job.offload} is DeepSpeed's and FSDP's: --strategy zero2, zero3 or fsdp")
    if job.offload == "all" and job.strategy in ("zero1", "zero2"):
        raise ConfigError("--offload all: DeepSpeed offloads weights at stage 3 alone; give --strategy zero3")
    if job.offload != "none" and job.strategy == "zero0":
        raise ConfigError(f"--offload {job.offload}: DeepSpeed offloads from stage 1 on; give --strategy zero2")
    if job.offload == "optimizer" and job.strategy == "fsdp":
        raise ConfigError(
            "--offload optimizer: FSDP offloads weights, gradients and states together; give --offload all"
        )
    if zero and job.autocast != "none":
        raise ConfigError(
            f"--autocast {job.autocast}: DeepSpeed keeps weights in --dtype {job.autocast} and fp32 copies in its"
            " optimizer instead; give --autocast none"
        )
    if job.strategy == "zero1" and job.zero.overlap_comm:
        raise UnsupportedError("zero: overlap_comm at stage 1 is not modelled yet")
    alone = {f"--quantize {job.quantize}": job.quantize != "none", "--method dora": job.method == "dora"}
    alone |= {
        "modules_to_save": bool(job.modules_to_save),
        "prepare_for_kbit_training": job.prepare_for_kbit_training,
        "fp32_norms": job.fp32_norms,
    }
    for name in (name for name, is_on in alone.items() if is_on and job.strategy == "zero0"):
        raise UnsupportedError(f"--strategy zero0 with {name} is not modelled yet; use zero2")
    if job.device_map and job.strategy in ("zero3", "fsdp"):
        raise ConfigError(f"device_map with --strategy {job.strategy}, which divides weights as they are loaded")
    if job.fsdp.replicas > 1 and (job.fsdp.version != 1 or job.num_gpus % job.fsdp.replicas):
        raise ConfigError(
            f"fsdp: replicas {job.fsdp.replicas}: hybrid sharding is version 1's, over cards that divide into them"
        )
    if job.strategy == "zero3":
        _check_zero3(job)
    if job.strategy == "fsdp":
        _check_fsdp(job)
    if job.strategy == "device_map" and job.loss in ("sliced", "sections", "cut"):
        raise UnsupportedError(f"--strategy device_map with --loss {job.loss} is not modelled yet; use --loss standard")
    if job.strategy in ("fsdp", "device_map") and job.num_gpus == 1:
        name = {"fsdp": "FSDP"}.get(job.strategy, "device_map")
        raise ConfigError(f"{name} needs more than one card: --num-gpus")


def _check_zero3(job: Job) -> None:
    """What DeepSpeed 0.19 cannot divide, or divides to no avail."""
    if job.quantize == "int8":
        raise UnsupportedError(
            "--strategy zero3 --quantize int8: bitsandbytes keeps every weight whole beside its part, which is not"
            " modelled; use --quantize nf4, or zero2"
        )
    if job.quantize == "nf4" and job.quant_storage not in (None, "uint8", job.dtype):
        raise ConfigError(
            f"--strategy zero3 with quant_storage {job.quant_storage}: DeepSpeed would cast four-bit weights that are"
            f" packed in it to {job.dtype}, as if they were numbers; give {job.dtype} (bnb_4bit_quant_storage)"
        )
    if job.modules_to_save and not job.engine_casts and job.lora_dtype != (job.saved_dtype or job.dtype):
        raise ConfigError(
            f"--strategy zero3 with modules_to_save: DeepSpeed puts all that trains in one tensor, and PEFT's adapters"
            f" are {job.lora_dtype}, the copies {job.saved_dtype or job.dtype}; give --lora-dtype {job.dtype}"
            " (autocast_adapter_dtype=False)"
        )


def _check_fsdp(job: Job) -> None:
    """What torch 2.13's FSDP stops at, as accelerate 1.15 wraps what PEFT 0.21 and bitsandbytes 0.50 made."""
    first = job.fsdp.version == 1
    if job.quantize == "int8":
        why = "FSDP 1 flattens no whole numbers" if first else "FSDP 2 makes plain parameters of bitsandbytes' weights"
        raise ConfigError(f"--strategy fsdp --quantize int8: {why}; use --quantize nf4, or --strategy zero2")
    packed = job.quant_storage or job.dtype
    if job.quantize == "nf4" and first and packed == "uint8":
        raise ConfigError(
            "--strategy fsdp with quant_storage uint8: FSDP 1 flattens no whole numbers; set bnb_4bit_quant_storage to"
            f" the dtype of the rest, {job.dtype}"
        )
    if job.quantize == "nf4" and packed not in ("uint8", job.dtype):
        raise ConfigError(
            f"--strategy fsdp with quant_storage {packed}: four-bit weights packed in it are not gathered with"
            f" {job.dtype} ones; set bnb_4bit_quant_storage to {job.dtype}"
        )
    if not first:
        return
    raised = "fp32_norms" if job.fp32_norms and job.dtype != "fp32" else ""
    if job.prepare_for_kbit_training:
        raised = "prepare_for_kbit_training"
    if raised:
        raise ConfigError(
            f"--strategy fsdp with {raised}: FSDP 1 flattens weights of one dtype alone, and norms are fp32 beside"
            f" {job.dtype}; leave them, or take version 2"
        )
    if job.method == "dora":
        raise ConfigError(
            "--strategy fsdp --method dora: under FSDP 1 PEFT finds no shape of a matrix that is not gathered; take"
            " version 2"
        )
    if job.modules_to_save:
        raise UnsupportedError("--strategy fsdp with modules_to_save: modelled of FSDP 2 alone; take version 2")
    if job.quantize == "nf4" and job.autocast == "none":
        raise ConfigError(
            "--strategy fsdp --quantize nf4 --autocast none: under FSDP 1 inputs and adapters differ in dtype; give"
            f" --autocast {job.dtype}, or take version 2"
        )
    if job.quantize == "nf4" and not job.fsdp.reshard_after_forward and job.fsdp.use_orig_params:
        raise ConfigError(
            "--strategy fsdp --quantize nf4 with SHARD_GRAD_OP: bitsandbytes sets gathered weights anew, which FSDP 1"
            " takes for a change between forward and backward; take FULL_SHARD, use_orig_params: false or version 2"
        )


def check_spec(spec: ModelSpec) -> None:
    """Refuse a model that is not what its configuration makes it seem.

    Raises:
        UnsupportedError: for a quantized checkpoint.
    """
    if spec.config.get("quantization_config"):
        raise UnsupportedError(f"{spec.name}: quantization_config: quantized checkpoints are not modelled yet")


def check_card(job: Job, card: Gpu) -> None:
    """Refuse what the card cannot run.

    Raises:
        CannotRunError: naming the setting, and what runs instead.
        ConfigError: for what runs on no card.
    """
    casts = job.autocast == "fp16"  # products of bf16 weights are fp16's then
    for flag, dtype in (("--dtype", "none" if casts else job.dtype), ("--autocast", job.autocast)):
        if dtype == "bf16" and not card.supports("bf16"):
            zero = job.strategy.startswith("zero")
            update = {"dtype": "fp32" if job.method == "full" and not zero else "fp16", "autocast": "fp16"}
            raise CannotRunError(
                f"{flag} bf16",
                f"{card.title} has no bf16 units (compute capability {card.compute_capability})",
                {"dtype": update["dtype"], "autocast": "none" if zero else "fp16"},
                {name: value for name, value in update.items() if getattr(job, name) != value},
            )
    if job.loop == "trainer" and job.autocast == "fp16" and job.trained_dtype == "fp16":
        field = "dtype" if job.method == "full" else "lora_dtype"
        flag = f"--{field.replace('_', '-')}"
        raise CannotRunError(
            f"{flag} fp16 --autocast fp16",
            "the gradient scaler refuses to unscale fp16 gradients of weights that are stored so",
            {field: "fp32", "autocast": "fp16"},
            {field: "fp32"},
        )
    if (
        job.attention == "flash"
        and job.autocast == "none"
        and (job.dtype == "fp32" or (job.prepare_for_kbit_training and not job.engine_casts))
    ):
        raise ConfigError("--attention flash: FlashAttention takes bf16 or fp16 only; add --autocast bf16")
    if job.attention == "flash" and not card.runs_flash:
        raise CannotRunError(
            "--attention flash",
            f"FlashAttention-2 needs compute capability 8.0; {card.title} has {card.compute_capability}",
            {"attention": "sdpa"},
            {"attention": "sdpa"},
        )
