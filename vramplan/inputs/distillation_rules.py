"""What distillation with a teacher cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule

ALONE = ("teacher", "teacher_dtype", "teacher_logits", "divergence", "generated_by")
"""Settings that only distillation has."""


LOSSES = ("standard", "sliced", "logits_to_keep", "chunked")
"""TRL's GKDTrainer from 1.7 on and before, ms-swift's, TRL's DistillationTrainer."""


def distils(job: Job) -> bool:
    """Whether TRL's GKDTrainer runs the job."""
    return job.task == "gkd"


def _alone(name: str) -> Rule:
    return Rule(
        lambda job: not distils(job) and getattr(job, name) != Job.model_fields[name].default,
        IMPOSSIBLE,
        f"{{{name}}} has no meaning without {{task=gkd}}",
    )


DISTILLATION_RULES = (
    *map(_alone, ALONE),
    Rule(
        lambda job: distils(job) and job.teacher is None and job.teacher_logits is None,
        IMPOSSIBLE,
        "{task} needs the model to learn from: give its name, a folder or a config.json as {teacher=MODEL}",
    ),
    Rule(
        lambda job: distils(job) and job.teacher is not None and job.teacher_logits is not None,
        IMPOSSIBLE,
        "{teacher_logits} with {teacher}: they come from a teacher on other GPUs; give one of both",
    ),
    Rule(
        lambda job: distils(job) and job.teacher_logits is not None and job.loss != "logits_to_keep",
        UNSUPPORTED,
        "{teacher_logits} with {loss} is not modelled; use {loss=logits_to_keep}, ms-swift's own trainer",
    ),
    Rule(
        lambda job: distils(job) and job.loss not in LOSSES,
        UNSUPPORTED,
        "{loss} with {task} is not modelled: TRL's GKDTrainer compares whole logits; use {loss=standard}, or"
        " {loss=sliced} for TRL up to 1.6, {loss=chunked} for its DistillationTrainer, {loss=logits_to_keep} for"
        " ms-swift",
    ),
    Rule(
        lambda job: distils(job) and job.loss == "chunked" and job.autocast != "none",
        IMPOSSIBLE,
        "{autocast} with {task} {loss}: TRL's DistillationTrainer calls the models below what accelerate's autocast"
        " wraps, and computes in the dtype of the weights; use {autocast=none}",
    ),
    Rule(
        lambda job: distils(job) and job.loss == "chunked" and job.generated_by not in ("student", "none"),
        IMPOSSIBLE,
        "{generated_by} with {task} {loss}: the student alone generates in TRL's DistillationTrainer; use"
        " {generated_by=student}",
    ),
    Rule(
        lambda job: distils(job) and job.loss == "chunked" and job.strategy == "zero3",
        UNSUPPORTED,
        "{strategy} with {task} {loss} was not compared with a run of TRL, which gathers both heads by itself; use"
        " {strategy=zero2}, or {loss=standard} for its GKDTrainer",
    ),
    Rule(
        lambda job: distils(job) and job.strategy == "zero3" and job.generated_by in ("teacher", "both"),
        UNSUPPORTED,
        "{generated_by} with {strategy} is not modelled: TRL gathers the whole teacher for it; use {strategy=zero2}",
    ),
    Rule(
        lambda job: distils(job) and job.loss == "logits_to_keep" and job.generated_by in ("teacher", "both"),
        IMPOSSIBLE,
        "{generated_by} with {loss}: no teacher generates in ms-swift; use {generated_by=student} or none",
    ),
    Rule(
        lambda job: distils(job) and job.rollout_offload in ("model", "all"),
        UNSUPPORTED,
        "{rollout_offload} with {task}, where the teacher stays, is not modelled; use {rollout_offload=optimizer}",
    ),
    Rule(
        lambda job: distils(job) and job.joins_samples and job.loss != "logits_to_keep",
        UNSUPPORTED,
        "{batches} with {task}: TRL's GKDTrainer pads samples; use {batches=padded}, or {loss=logits_to_keep} for"
        " ms-swift's padding_free",
    ),
    Rule(
        lambda job: distils(job) and job.loop == "plain",
        UNSUPPORTED,
        "{loop} with {task}: TRL's trainer is modelled; use {loop=trainer}",
    ),
    Rule(
        lambda job: distils(job) and job.pictures > 0,
        UNSUPPORTED,
        "{task} with images is not modelled; a language model of text alone is",
    ),
    Rule(
        lambda job: distils(job) and job.lengths is not None,
        UNSUPPORTED,
        "samples of several lengths with {task} are not modelled; give {sequence_length} of the longest",
    ),
    Rule(
        lambda job: distils(job) and job.experts == "linear",
        UNSUPPORTED,
        "{experts} with {task} is not modelled: give {experts=stacked}, as in transformers 5",
    ),
    Rule(
        lambda job: distils(job) and (job.strategy in ("fsdp", "device_map", "zero0") or job.offload != "none"),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled: TRL's GKDTrainer does not place a teacher under FSDP; use"
        " {strategy=ddp} or zero2, and {offload=none}",
    ),
)
