"""Many micro-batches from a few traces: from two samples on, every tensor's size grows linearly.

A step does the same operations in the same order whatever the micro-batch, so two traces with the same events give the
size of each storage at any other micro-batch, and with it the whole timeline. Micro-batch 1 is always traced: PyTorch
treats dimensions of one element differently. Further micro-batches of an optimizer step are all alike: two of them
stand for many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.memory.batch_scaling import LinearSize, interpolate
from vramplan.memory.estimate import PartialEstimate, SimulatedStep
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Kinds, Storage
from vramplan.step_time.step_time import ComputeTime
from vramplan.torch_backend.model.training_loop import WAITING

POINTS = (2, 3)
"""Micro-batches that are traced for all larger ones."""


class TraceScaling:
    """Estimates of one model at any micro-batch; `trace` is called once for each point and kind of step."""

    def __init__(self, trace: Callable[[ModelSpec, Job, Gpu], SimulatedStep]) -> None:
        self.trace = trace
        self.traced: dict[Job, SimulatedStep] = {}

    def begin(self, spec: ModelSpec, job: Job, gpu: Gpu, several: bool = False) -> PartialEstimate:
        """The lower bound of an estimate, from which the rest is completed.

        Raises:
            VramplanError: for whatever cannot run or cannot be traced.
        """
        step = self.simulated_step(spec, job, gpu)
        peak_tensor_bytes = step.peak_tensor_bytes
        lower_bound_bytes = peak_tensor_bytes + outside_bytes(job, gpu)
        return PartialEstimate(lower_bound_bytes, lambda: summarize(step, spec.name, job, gpu, peak_tensor_bytes))

    def simulated_step(self, spec: ModelSpec, job: Job, gpu: Gpu) -> SimulatedStep:
        """The job's step: interpolated from two traces, or traced at micro-batch 1 and if their events differ."""
        micro, steps = job.micro_batch_size, job.gradient_accumulation_steps
        kind = job.model_copy(update={"gradient_accumulation_steps": min(2, steps)})
        if micro == 1:
            return with_accumulation(self._at(spec, kind, gpu, 1), steps)
        low, high = (self._at(spec, kind, gpu, point) for point in POINTS)
        if low.timeline.events != high.timeline.events:
            return with_accumulation(self._at(spec, kind, gpu, micro), steps)
        return with_accumulation(between(low, high, micro, gpu), steps)

    @staticmethod
    def reason(spec: ModelSpec) -> str:
        """Why the model is traced."""
        if spec.model_type == IMPORT_PATH:
            return "a model of your own"
        return f"the analytic estimator does not support {spec.model_type!r}"

    def _at(self, spec: ModelSpec, kind: Job, gpu: Gpu, micro: int) -> SimulatedStep:
        job = kind.model_copy(update={"micro_batch_size": micro})
        if job not in self.traced:
            step = self.trace(spec, job, gpu)
            note = (
                f"{self.reason(spec)}: traced at micro-batches 1, {' and '.join(map(str, POINTS))};"
                " others are interpolated tensor by tensor"
            )
            self.traced[job] = replace(step, notes=(*step.notes, note))
        return self.traced[job]


def between(low: SimulatedStep, high: SimulatedStep, micro: int, gpu: Gpu) -> SimulatedStep:
    """The step at a micro-batch, from two steps at :data:`POINTS`."""
    first, last = POINTS

    def line(a: float, b: float) -> float:
        return a + (b - a) * (micro - first) / (last - first)

    return replace(
        low,
        timeline=interpolate(first, low.timeline, last, high.timeline, micro, gpu),
        evaluation_bytes=LinearSize.through(first, low.evaluation_bytes, last, high.evaluation_bytes).at(micro),
        compute=ComputeTime(
            line(low.compute.forward_seconds, high.compute.forward_seconds),
            line(low.compute.backward_seconds, high.compute.backward_seconds),
            low.compute.optimizer_seconds,
        ),
        flops_per_micro_step=round(line(low.flops_per_micro_step, high.flops_per_micro_step)),
    )


def with_accumulation(step: SimulatedStep, steps: int) -> SimulatedStep:
    """The step with `steps` micro-batches fetched together instead of the two that were traced."""
    if steps <= 2:
        return step
    timeline = step.timeline
    kinds = Kinds(
        Storage(storage.num_bytes * (steps - 1), storage.category, storage.label, storage.formula, storage.in_kernel)
        if storage.label.endswith(WAITING)
        else storage
        for storage in timeline.kinds
    )
    return replace(step, timeline=replace(timeline, kinds=kinds))
