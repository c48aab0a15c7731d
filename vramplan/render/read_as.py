"""What a configuration was read as, in one line: people see at once if that is not what they meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.render.figures import STRATEGIES, engine, length, method
from vramplan.units import counted

if TYPE_CHECKING:
    from vramplan.planner.verdict import Verdict


def read_as(verdict: Verdict) -> str:
    """What the configuration was read as: framework, kind of training, method, dtype, length, strategy, GPUs."""
    config, job = verdict.reading, verdict.estimate.job
    lengths = {case.sequence_length for case in verdict.cases}
    dtype = job.dtype if job.autocast in ("none", job.dtype) else f"{job.dtype} weights under {job.autocast} autocast"
    unlimited = " (nothing limits them: --seq-len)" if verdict.open_length else ""
    facts = [
        " ".join(filter(None, (config.framework, config.version))),
        config.task,
        "" if job.teacher is None else f"teacher {job.teacher.rpartition('/')[2]}",
        engine(job),
        method(job),
        dtype,
        "any length" if len(lengths) > 1 else f"{_length(verdict)}{unlimited}",
        job.optimizer if job.method == "full" else "",
        "" if job.strategy == "ddp" and job.num_gpus == 1 else STRATEGIES[job.strategy],
        {"none": "", "optimizer": "optimizer on the host", "all": "weights and optimizer on the host"}[job.offload],
        f"{job.sequence_parallel} GPUs share a micro-batch" if job.sequence_parallel > 1 else "",
        "expandable segments" if job.expandable_segments else "",
        counted(job.num_gpus, "GPU") if len({case.num_gpus for case in verdict.cases}) < 2 else "any number of GPUs",
    ]
    return ", ".join(fact for fact in facts if fact)


def _length(verdict: Verdict) -> str:
    """The tokens of a sample; rows of samples that are joined without padding are not packed to a length."""
    job = verdict.estimate.job
    text = length(job, verdict.estimate.assumptions)
    joins = job.batches == "packed" and verdict.reading.rows == "samples" and text
    return f"samples of {job.sequence_length:,} tokens in one row" if joins else text
