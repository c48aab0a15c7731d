"""Simulated runs whose micro-batches differ in shape: whether they run out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from vramplan.analytic.job_steps import JobSteps
from vramplan.analytic.mixed_batches import BatchShape
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import plannable_bytes
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.summarize import replayer


class MixedRuns:
    """Runs of one job on a GPU, whose safety margin stays free; the job's own micro-batch does not matter."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu) -> None:
        self.job, self.steps = job, JobSteps(spec, job, gpu)
        self.limit: int = plannable_bytes(job, gpu) - outside_bytes(job, gpu)
        """Bytes that PyTorch may reserve."""

    def survives(self, batches: Sequence[Sequence[BatchShape]], empties_cache: bool = False) -> bool:
        """Whether optimizer steps of these micro-batches, one after another, do not run out of memory.

        Args:
            batches: the micro-batches of each optimizer step.
            empties_cache: whether ``torch.cuda.empty_cache()`` is called before a step of another shape.
        """
        timelines = self.steps.mixed(batches, empties_cache)
        return not any(replayer(timeline, self.job)(self.limit).out_of_memory for timeline in timelines.values())


def in_turn(shapes: Sequence[BatchShape], seed: int, count: int) -> list[list[BatchShape]]:
    """Optimizer steps of two micro-batches each, `count` in all, whose shapes are drawn by chance."""
    draws = Random(seed)
    order = [draws.choice(shapes) for _ in range(count)]
    return [order[number : number + 2] for number in range(0, len(order), 2)]
