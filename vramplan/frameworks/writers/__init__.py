"""A plan in a framework's own words: what to paste, and what it could not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from vramplan.errors import UnsupportedError
from vramplan.frameworks.writers import native, trainer_based
from vramplan.frameworks.writers.config_text import ConfigText
from vramplan.inputs.job import Job

WRITERS: Mapping[str, Callable[[str, Job], ConfigText]] = {
    "swift": trainer_based.swift,
    "llamafactory": trainer_based.llamafactory,
    "axolotl": trainer_based.axolotl,
    "trl": trainer_based.trl,
    "transformers": trainer_based.transformers,
    "accelerate": trainer_based.accelerate,
    "torchtune": native.torchtune,
    "unsloth": native.unsloth,
    "deepspeed": native.deepspeed,
}
"""By the name that `suggest --for` takes."""
PACKAGES = {"swift": "ms-swift", "accelerate": "transformers"}
"""Their packages, where those are called otherwise."""
COMPARED = (
    "method", "lora_rank", "lora_targets", "lora_dropout", "lora_dtype", "dtype", "autocast", "quantize",
    "prepare_for_kbit_training", "fp32_norms", "modules_to_save", "saved_dtype", "optimizer", "experts",
    "vision", "projector", "max_pixels", "max_tiles", "images", "sequence_length", "micro_batch_size",
    "gradient_accumulation_steps", "checkpointing", "attention", "loss", "num_gpus", "strategy", "offload",
)  # fmt: skip
"""Fields that must come back when what was written is read again."""


ENGINES = ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp")
SHARES: Mapping[str, tuple[str, ...]] = {
    "swift": (*ENGINES, "device_map"),
    "llamafactory": ENGINES[:-1],
    **dict.fromkeys(("axolotl", "trl", "transformers", "accelerate"), ENGINES),
}
"""Strategies that a framework can be told."""
SAYS: Mapping[str, tuple[str, ...]] = {
    "deepspeed": (
        "micro_batch_size",
        "gradient_accumulation_steps",
        "dtype",
        "autocast",
        "optimizer",
        "num_gpus",
        "strategy",
    ),
}
"""The fields that such a configuration can say at all, where it is not a whole job."""


def unsaid(framework: str, job: Job, again: Job) -> list[str]:
    """Fields that the framework, reading what was written for it, takes otherwise."""
    skipped = {"lora_rank", "lora_targets", "lora_dropout", "lora_dtype"} if job.method == "full" else set()
    fields = [name for name in SAYS.get(framework, COMPARED) if name not in skipped]
    found = [name for name in fields if getattr(job, name) != getattr(again, name)]
    part = "fsdp" if job.strategy == "fsdp" else "zero" if job.strategy.startswith("zero") else ""
    for name in type(getattr(job, part)).model_fields if part else ():
        path = f"{part}.{name}"
        if name != "leaf_mixtures" and attrgetter(path)(job) != attrgetter(path)(again):  # which goes by the framework
            found.append(path)
    if job.quantize == "int8" and job.checkpointing == "full" and job.reentrant != again.reentrant:
        found.append("reentrant")
    whole = framework not in SAYS and (job.batches == "packed") != (again.batches == "packed")
    return [*found, "batches"] if whole else found


def write(framework: str, model: str, job: Job) -> ConfigText:
    """The job in a framework's own words.

    Raises:
        UnsupportedError: for a framework that nothing is written for.
    """
    if framework not in WRITERS:
        raise UnsupportedError(f"--for {framework}: nothing is written for it yet; known: {', '.join(WRITERS)}")
    if job.strategy == "device_map" and framework not in ("swift", "deepspeed"):
        raise UnsupportedError(f"--for {framework}: device_map stands in a script of one's own; --for swift writes it")
    if framework != "deepspeed" and job.strategy not in SHARES.get(framework, ("ddp",)):
        by = "accelerate" if framework == "llamafactory" else "axolotl, transformers, accelerate and others"
        raise UnsupportedError(
            f"--for {framework}: --strategy {job.strategy} is not written for it; --for {by} writes it"
        )
    return WRITERS[framework](model, job)


__all__ = ["PACKAGES", "SAYS", "WRITERS", "ConfigText", "unsaid", "write"]
