"""What preference training and GRPO of a vision-language model cannot do with images, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Loss
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule
from vramplan.inputs.task_rules import TRL_TASKS

WITH_IMAGES: dict[str, tuple[Loss, ...]] = {
    "dpo": ("chunked", "log_softmax", "logits_to_keep"),
    "kto": ("chunked", "log_softmax"),
    "grpo": ("chunked", "logits_to_keep", "log_probs"),
    "rloo": ("chunked",),
}
"""The losses that are modelled of batches with images; the first is that of TRL 1.16."""


def sees(job: Job) -> bool:
    """Whether the job is one of TRL's tasks on images or videos."""
    return job.task in TRL_TASKS and job.pictures > 0


OF_SWIFTS_GRPO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Types of models that ms-swift's GRPO was compared of; its templates do something of their own for each."""


OF_VERL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Types of models whose forward verl's actor replaces, and that were compared with its runs."""


def runs_swift(job: Job) -> bool:
    """Whether images reach the model as in ms-swift 4.6, some of whose templates compute the tower in a hook."""
    return job.loss == "logits_to_keep" and job.task in ("grpo", "dpo")


def runs_without_graph(job: Job) -> bool:
    """Whether a frozen tower has no graph although its input needs a gradient (its patch_frozen_module)."""
    return runs_swift(job) and job.vision == job.projector == "frozen"


def is_compared(job: Job, model_type: str) -> bool:
    """Whether a job's trainer was run with images of models of this type, as far as it is one of ms-swift's.

    Under DeepSpeed it has a forward of its own for Qwen3-VL (model/models/qwen.py: _compat_qwen3_vl_mixed_data).
    """
    if job.runs_verl and job.pictures:
        return model_type in OF_VERL
    if not (runs_swift(job) and job.pictures):
        return True
    if model_type == "qwen3_vl" and job.strategy.startswith("zero"):
        return False
    if job.task == "dpo" and not job.joins_samples:
        return True
    return model_type in OF_SWIFTS_GRPO


def _is_compared_sharded(job: Job) -> bool:
    """Whether the trainer of a task was run with images under ZeRO-3 or FSDP 2."""
    return job.loss == "chunked" or (job.strategy == "zero3" and runs_swift(job)) or job.runs_verl


IMAGE_TASK_RULES = (
    Rule(
        lambda job: sees(job) and job.task not in WITH_IMAGES,
        UNSUPPORTED,
        "{task} with {images} is not modelled: TRL's trainer takes text alone; use {images=0}, or {task=dpo}",
    ),
    Rule(
        lambda job: sees(job) and job.loss not in WITH_IMAGES.get(str(job.task), ()),
        UNSUPPORTED,
        "{loss} with {task} and {images} was not compared with a run of its trainer; use {loss=chunked}, TRL's own, or"
        " {images=0}",
    ),
    Rule(
        lambda job: sees(job) and job.videos > 0 and job.loss in ("chunked", "standard"),
        UNSUPPORTED,
        "{task} with {videos}: TRL's trainers take images alone; use {images}",
    ),
    Rule(
        lambda job: job.videos > 0 and job.runs_verl,
        UNSUPPORTED,
        "{task} {loss} with {videos} was not compared with a run of verl; use {images=1}",
    ),
    Rule(
        lambda job: job.videos > 0 and runs_swift(job),
        UNSUPPORTED,
        "{task} {loss} with {videos} was not compared with a run of ms-swift; use {images=1}",
    ),
    Rule(
        lambda job: (
            sees(job) and job.joins_samples and not (runs_swift(job) and job.task == "dpo") and not job.runs_verl
        ),
        UNSUPPORTED,
        "{batches} with {task} and {images} was not compared with a run of its trainer; use {batches=padded}",
    ),
    Rule(
        lambda job: sees(job) and job.reference == "precomputed",
        IMPOSSIBLE,
        "{reference} with {images}: TRL's trainers stop at both; use {reference=model} or adapters_off",
    ),
    Rule(
        lambda job: sees(job) and job.strategy in ("zero3", "fsdp") and not _is_compared_sharded(job),
        UNSUPPORTED,
        "{strategy} with {task}, {loss} and {images} was not compared with a run of its trainer; use {strategy=zero2}",
    ),
)
