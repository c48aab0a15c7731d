"""Whether a job can run on a card and is modelled: what is not, is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.analytic.families import Family, family_of
from vramplan.analytic.optimizers import optimizer_of
from vramplan.card import Card
from vramplan.errors import ConfigError, SpecError, UnknownNameError, UnsupportedError
from vramplan.job import Job
from vramplan.spec import Config, ModelSpec

MOST_LAYERS = 4096
"""No model comes near; a larger number would only cost time and memory."""


def check_job(job: Job, card: Card) -> None:
    """Refuse what the card cannot run and what is not modelled.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
        UnknownNameError: for an unknown optimizer.
    """
    if job.method in ("qlora", "dora"):
        raise UnsupportedError(f"--method {job.method} is not modelled yet; modelled: full, lora")
    if job.strategy != "ddp":
        raise UnsupportedError(
            f"--strategy {job.strategy} is not modelled yet; modelled: ddp, where every card holds the whole model"
        )
    optimizer_of(job.optimizer)
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
    if job.method == "lora" and job.loss != "standard" and "lm_head" in (job.lora_targets or ()):
        raise UnsupportedError(f"--loss {job.loss} with an adapter on lm_head is not modelled; use --loss standard")
    if job.attention == "flash" and not (job.autocast != "none" or job.dtype != "fp32"):
        raise ConfigError("--attention flash: FlashAttention takes bf16 or fp16 only; add --autocast bf16")
    if job.attention == "flash" and card.vendor == "NVIDIA" and card.capability < (8, 0):
        raise ConfigError(
            f"--attention flash: FlashAttention-2 needs compute capability 8.0; {card.title} has"
            f" {card.compute_capability}; use --attention sdpa"
        )


def check_model(spec: ModelSpec, config: Config, family: Family, job: Job) -> list[str]:
    """Refuse what this architecture does not have; returns notes worth telling.

    Raises:
        UnsupportedError: for a variant of the architecture that no block describes.
        ConfigError: for an attention implementation or a length that cannot run.
    """
    for key, value in family.refuses:
        if config.get(key) == value:
            raise UnsupportedError(f"{spec.name}: {spec.model_type} with {key} = {value} is not described by any block")
    if job.attention not in family.attention:
        raise ConfigError(
            f"--attention {job.attention}: transformers runs {spec.model_type} only with {', '.join(family.attention)}"
        )
    notes = []
    shape = family.shape(config)
    if shape.layers > MOST_LAYERS:
        raise SpecError(f"{spec.name}: {shape.layers} layers; more than {MOST_LAYERS} are taken for a slip")
    if shape.positions is not None and job.sequence_length > shape.positions:
        if shape.hard_limit:
            raise ConfigError(
                f"--seq-len {job.sequence_length}: {spec.name} has a table of {shape.positions} positions;"
                f" longer sequences cannot run"
            )
        notes.append(
            f"{job.sequence_length} tokens exceed the {shape.positions} positions the model was made for;"
            f" memory is right, quality needs rope scaling"
        )
    if family.remote_code:
        notes.append(
            f"{spec.name} brings its own code; activations are those of the {spec.model_type} block written after it,"
            f" parameters are exact"
        )
    if config.get("quantization_config"):
        raise UnsupportedError(f"{spec.name}: quantization_config: quantized checkpoints are not modelled yet")
    return notes


def check_adapters(job: Job, widths: Mapping[str, int], linear_names: list[str]) -> None:
    """Refuse adapters that go nowhere or are wider than their layer.

    Raises:
        UnknownNameError: for a target that matches no layer.
        ConfigError: for a rank above a layer's narrow side.
    """
    if job.method == "full":
        return
    for target in job.lora_targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in linear_names):
            last = sorted({name.rpartition(".")[2] for name in linear_names})
            raise UnknownNameError("LoRA target", target, last, f"this model has {', '.join(last)}")
    narrow = min(widths, key=lambda name: widths[name])
    if job.lora_rank > widths[narrow]:
        raise ConfigError(
            f"--lora-rank {job.lora_rank}: {narrow} is only {widths[narrow]} wide; a larger rank adds nothing"
        )


__all__ = ["check_adapters", "check_job", "check_model", "family_of"]
