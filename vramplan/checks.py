"""Whether a job can run on a card at all, whoever works out its memory."""

from __future__ import annotations

from vramplan.card import Card
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.job import Job
from vramplan.spec import ModelSpec


def check_job(job: Job, card: Card) -> None:
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
    if job.kbit and job.quantize == "none":
        raise ConfigError("kbit goes with --quantize nf4 or int8: it is about what is left unquantized")
    check_sharing(job)
    check_card(job, card)


def check_sharing(job: Job) -> None:
    """Refuse what a strategy cannot do, or what is not modelled of it.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
    """
    zero = job.strategy.startswith("zero")
    if job.offload != "none" and not zero:
        raise UnsupportedError(f"--offload {job.offload} is modelled with DeepSpeed alone: --strategy zero2 or zero3")
    if job.offload == "all" and job.strategy != "zero3":
        raise ConfigError("--offload all: DeepSpeed offloads weights at stage 3 alone; give --strategy zero3")
    if zero and job.autocast != "none":
        raise ConfigError(
            f"--autocast {job.autocast}: DeepSpeed keeps weights in --dtype {job.autocast} and fp32 copies in its"
            " optimizer instead; give --autocast none"
        )
    if job.strategy == "zero1" and job.zero.overlap_comm:
        raise UnsupportedError("zero: overlap_comm at stage 1 is not modelled yet")
    if job.strategy in ("zero3", "fsdp") and job.quantize != "none":
        raise UnsupportedError(f"--strategy {job.strategy} --quantize {job.quantize} is not modelled yet; use ddp")
    alone = {"--method dora": job.method == "dora", "--quantize int8": job.quantize == "int8"}
    alone |= {"modules_to_save": bool(job.modules_to_save), "kbit": job.kbit, "fp32_norms": job.fp32_norms}
    for name in (name for name, is_on in alone.items() if is_on and job.strategy != "ddp"):
        raise UnsupportedError(f"--strategy {job.strategy} with {name} is not modelled yet")
    if job.strategy == "fsdp" and job.num_gpus == 1:
        raise ConfigError("--strategy fsdp needs more than one card: --num-gpus")


def check_spec(spec: ModelSpec) -> None:
    """Refuse a model that is not what its configuration makes it seem.

    Raises:
        UnsupportedError: for a quantized checkpoint.
    """
    if spec.config.get("quantization_config"):
        raise UnsupportedError(f"{spec.name}: quantization_config: quantized checkpoints are not modelled yet")


def check_card(job: Job, card: Card) -> None:
    """Refuse what the card cannot run.

    Raises:
        ConfigError: naming the setting, and what runs instead.
    """
    for flag, dtype in (("--dtype", job.dtype), ("--autocast", job.autocast)):
        if dtype == "bf16" and not card.supports("bf16"):
            raise ConfigError(
                f"{flag} bf16: {card.title} has no bf16 units (compute capability {card.compute_capability});"
                f" run {'--dtype fp16 --autocast fp16' if job.method != 'full' else '--dtype fp32 --autocast fp16'}"
            )
    if job.loop == "trainer" and job.autocast == "fp16" and job.method == "full" and job.dtype == "fp16":
        raise ConfigError(
            "--dtype fp16 --autocast fp16: the gradient scaler refuses to unscale fp16 gradients;"
            " store trained weights as --dtype fp32"
        )
    if job.attention == "flash" and job.autocast == "none" and (job.dtype == "fp32" or job.kbit):
        raise ConfigError("--attention flash: FlashAttention takes bf16 or fp16 only; add --autocast bf16")
    if job.attention == "flash" and not card.runs_flash:
        raise ConfigError(
            f"--attention flash: FlashAttention-2 needs compute capability 8.0; {card.title} has"
            f" {card.compute_capability}; use --attention sdpa"
        )
