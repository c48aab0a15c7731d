"""What preference training and GRPO of a vision-language model cannot do with images, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job, Loss
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule
from vramplan.inputs.task_rules import TRL_TASKS

WITH_IMAGES: dict[str, tuple[Loss, ...]] = {
    "dpo": ("chunked", "log_softmax", "logits_to_keep"),
    "kto": ("chunked", "log_softmax"),
    "grpo": ("chunked",),
    "rloo": ("chunked",),
}
"""The losses that are modelled of batches with images; the first is that of TRL 1.16."""


def sees(job: Job) -> bool:
    """Whether the job is one of TRL's tasks on images or videos."""
    return job.task in TRL_TASKS and job.pictures > 0


IMAGE_TASK_RULES = (
    Rule(
        lambda job: sees(job) and job.task not in WITH_IMAGES,
        UNSUPPORTED,
        "{task} with {images} is not modelled: TRL's trainer takes text alone; use {images=0}, or {task=dpo}",
    ),
    Rule(
        lambda job: sees(job) and job.loss not in WITH_IMAGES.get(str(job.task), ()),
        UNSUPPORTED,
        "{loss} with {task} and {images} was not compared with a run of its trainer; use {images=0}",
    ),
    Rule(
        lambda job: sees(job) and job.videos > 0 and job.loss in ("chunked", "standard"),
        UNSUPPORTED,
        "{task} with {videos}: TRL's trainers take images alone; use {images}",
    ),
    Rule(
        lambda job: sees(job) and job.reference == "precomputed",
        IMPOSSIBLE,
        "{reference} with {images}: TRL's trainers stop at both; use {reference=model} or adapters_off",
    ),
    Rule(
        lambda job: sees(job) and job.strategy in ("zero3", "fsdp"),
        UNSUPPORTED,
        "{strategy} with {task} and {images} was not compared with a run of TRL; use {strategy=zero2}",
    ),
)
