"""Many batch sizes from a few traces: from two samples on, every tensor's size is a straight line in the batch.

A step does the same operations in the same order whatever the batch, so two traces whose events agree give the size of
each storage at any other batch, and with it the whole timeline. Batch 1 stands alone: PyTorch treats dimensions of one
element in its own ways. Further micro-batches of an optimizer step are all alike: two of them stand for many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.memory.estimate import PartialEstimate, SimulatedStep
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Storage, Timeline
from vramplan.torch_backend.model.training_loop import WAITING

POINTS = (2, 3)
"""Micro-batches that the law goes through."""


class TraceScaling:
    """Estimates of one model at any batch; `trace` is called once for each point and kind of step."""

    def __init__(self, trace: Callable[[ModelSpec, Job, Gpu], SimulatedStep]) -> None:
        self.trace = trace
        self.known: dict[Job, SimulatedStep] = {}

    def begin(self, spec: ModelSpec, job: Job, card: Gpu) -> PartialEstimate:
        """The first half of an estimate, as the search wants it.

        Raises:
            VramplanError: for whatever cannot run or cannot be traced.
        """
        played = self.played(spec, job, card)
        peak_tensor_bytes = played.peak_tensor_bytes
        lower_bound_bytes = peak_tensor_bytes + outside_bytes(job, card)
        return PartialEstimate(lower_bound_bytes, lambda: summarize(played, spec.name, job, card, peak_tensor_bytes))

    def played(self, spec: ModelSpec, job: Job, card: Gpu) -> SimulatedStep:
        """The job's timeline: traced at batch 1, else from the law; traced as it is where the law does not hold."""
        batch, steps = job.micro_batch_size, job.gradient_accumulation_steps
        kind = job.model_copy(update={"gradient_accumulation_steps": min(2, steps)})
        if batch == 1:
            return with_accumulation(self._at(spec, kind, card, 1), steps)
        low, high = (self._at(spec, kind, card, point) for point in POINTS)
        if low.timeline.events != high.timeline.events:
            return with_accumulation(self._at(spec, kind, card, batch), steps)
        return with_accumulation(between(low, high, batch), steps)

    @staticmethod
    def why(spec: ModelSpec, job: Job) -> str:
        """Why no block will do."""
        if spec.model_type == IMPORT_PATH:
            return "a model of your own"
        return f"no block describes {spec.model_type!r}"

    def _at(self, spec: ModelSpec, kind: Job, card: Gpu, batch: int) -> SimulatedStep:
        job = kind.model_copy(update={"micro_batch_size": batch})
        if job not in self.known:
            found = self.trace(spec, job, card)
            note = (
                f"{self.why(spec, job)}: it was traced at micro-batches 1, {' and '.join(map(str, POINTS))};"
                " others follow tensor by tensor"
            )
            self.known[job] = replace(found, notes=(*found.notes, note))
        return self.known[job]


def between(low: SimulatedStep, high: SimulatedStep, batch: int) -> SimulatedStep:
    """The step at `batch`, from two steps at :data:`POINTS`."""
    first, second = POINTS

    def line(a: float, b: float) -> float:
        return a + (b - a) * (batch - first) / (second - first)

    @cache
    def at(a: Storage, b: Storage) -> Storage:
        if a.num_bytes == b.num_bytes:
            return a
        size = round(line(a.num_bytes, b.num_bytes))
        return Storage(size, a.category, a.label, f"{size} bytes at micro-batch {batch}", a.in_kernel)

    storages = [at(a, b) for a, b in zip(low.timeline.storages, high.timeline.storages, strict=True)]
    return replace(
        low,
        timeline=Timeline(storages, low.timeline.events, low.timeline.marks),
        evaluation_bytes=round(line(low.evaluation_bytes, high.evaluation_bytes)),
        micro_step_seconds=line(low.micro_step_seconds, high.micro_step_seconds),
        flops_per_micro_step=round(line(low.flops_per_micro_step, high.flops_per_micro_step)),
    )


def with_accumulation(played: SimulatedStep, steps: int) -> SimulatedStep:
    """The same with `steps` micro-batches fetched together instead of the two that were traced."""
    if steps <= 2:
        return played
    timeline = played.timeline
    storages = [
        Storage(one.num_bytes * (steps - 1), one.category, one.label, one.formula, one.in_kernel)
        if one.label.endswith(WAITING)
        else one
        for one in timeline.storages
    ]
    return replace(played, timeline=Timeline(storages, timeline.events, timeline.marks))
