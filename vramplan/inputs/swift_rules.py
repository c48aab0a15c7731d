"""What GPUs that share the tokens of ms-swift's texts cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule
from vramplan.inputs.swift import Swift


def shares_texts(job: Job) -> bool:
    """Whether GPUs share the tokens of each text."""
    return job.swift.sequence_parallel > 1


def _is_modelled(job: Job) -> bool:
    if job.task is None:
        return job.loss == "standard"
    return job.task in ("dpo", "grpo") and job.loss == "logits_to_keep"


SWIFT_RULES = (
    Rule(
        lambda job: job.swift != Swift() and not shares_texts(job),
        IMPOSSIBLE,
        "swift: cross_entropy_chunk has no meaning without sequence_parallel",
    ),
    Rule(
        lambda job: job.swift.chunks_in_place and job.swift.cross_entropy_chunk is None,
        IMPOSSIBLE,
        "swift: chunks_in_place has no meaning without cross_entropy_chunk",
    ),
    Rule(
        lambda job: job.swift.cross_entropy_chunk is not None and job.task is not None,
        IMPOSSIBLE,
        "swift: cross_entropy_chunk has no meaning with {task}, whose loss is no cross-entropy",
    ),
    Rule(
        lambda job: job.num_gpus % job.swift.sequence_parallel > 0,
        IMPOSSIBLE,
        "swift: sequence_parallel does not divide {num_gpus}",
    ),
    Rule(
        lambda job: shares_texts(job) and (not _is_modelled(job) or job.loop != "trainer"),
        UNSUPPORTED,
        "swift: sequence_parallel with {task} {loss} is not modelled; it is for the next token with {loss=standard},"
        " and for dpo and grpo with logits_to_keep",
    ),
    Rule(
        lambda job: shares_texts(job) and (job.attention != "flash" or job.strategy in ("fsdp", "device_map")),
        UNSUPPORTED,
        "swift: sequence_parallel with {attention} and {strategy} is not modelled; use {attention=flash} and"
        " {strategy=zero3}",
    ),
    Rule(
        lambda job: shares_texts(job) and job.pictures > 0,
        UNSUPPORTED,
        "swift: sequence_parallel with images is not modelled; nearest, whole texts on each GPU, which needs more:"
        " sequence_parallel 1",
    ),
)
