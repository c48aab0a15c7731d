"""One model and job on many GPUs: simulates once what GPUs have in common.

An estimate depends on few properties of a GPU: the kernels that SDPA may choose, the size of cuBLAS's workspace, the
sizes of some kernels' buffers, and how much may be reserved. GPUs that agree in the first two share the steps, of which
only a few are simulated if sizes are linear in the micro-batch (:mod:`vramplan.analytic.batch_scaling`). A replay of
the allocator holds for every capacity between the bytes it reserved and the smallest total that it was refused
(:class:`vramplan.memory.replay.Replay`), so GPUs of nearly the same size share replays as well, if buffers are equal.
Every answer is exact: the same as for the GPU alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from vramplan.analytic.job_steps import JobSteps, depends_on_size
from vramplan.analytic.prepare import fused_kernels
from vramplan.errors import UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.allocator import AllocatorSettings
from vramplan.memory.calibration import plannable_bytes
from vramplan.memory.fused_attention import FusedAttention
from vramplan.memory.overheads import cublas_workspace, outside_bytes
from vramplan.memory.replay import Replay, replay
from vramplan.memory.summarize import settle, step_time
from vramplan.memory.timeline import Timeline
from vramplan.planner.monotone_search import largest_batch, largest_by_tensors
from vramplan.step_time.notes import link_notes, time_notes
from vramplan.step_time.rates import is_timed


class Traits(NamedTuple):
    """The properties of a GPU that a step depends on; its dtypes are part of the job."""

    attention: FusedAttention
    size: int
    """Usable bytes if the step depends on them, else 0."""
    workspace: int
    """Bytes of cuBLAS's workspace, which the simulations of :class:`BatchScaling` do not depend on."""


Kernels = tuple[tuple[int, int], int | None]
"""What the buffers of kernels depend on: compute capability, number of multiprocessors."""


def kernels_of(gpu: Gpu) -> Kernels:
    """What the buffers of kernels depend on."""
    return gpu.capability, gpu.multiprocessors


def traits(spec: ModelSpec, gpu: Gpu, job: Job) -> Traits:
    """The traits of a GPU for a job."""
    size = gpu.usable_bytes if depends_on_size(job) else 0
    return Traits(fused_kernels(spec, gpu), size, cublas_workspace(gpu).num_bytes)


class Shared:
    """The steps and replays that GPUs of the same traits share; steps are simulated on `gpu`, one of them."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, similar: Shared | None = None) -> None:
        self.spec, self.job, self.gpu = spec, job, gpu
        self.steps: JobSteps = JobSteps(spec, job, gpu, None if similar is None else similar.steps)
        self.tensors: dict[int, dict[int, int]] = {}
        """Peak tensor bytes by micro-batch and number of the GPU."""
        self.replays: dict[tuple[int, int, tuple[int, ...]], list[Replay]] = {}
        """Replays by number of the GPU, micro-batch and sizes of the buffers of kernels."""
        self.largest: dict[tuple[int, Kernels], int] = {}
        """The largest micro-batch by limit, and by what the buffers of kernels depend on."""
        self._sizes: dict[tuple[int, Kernels], tuple[int, ...]] = {}

    def peak(self, micro: int) -> int:
        """Highest sum of live tensors at a micro-batch on any GPU, in bytes."""
        return max(self.peaks(micro).values())

    def peaks(self, micro: int) -> dict[int, int]:
        """The same by number of the GPU, for those that need different memory."""
        if micro not in self.tensors:
            timelines = self._timelines(micro, self.gpu)
            self.tensors[micro] = {number: one.peak_bytes(with_kernels=False) for number, one in timelines.items()}
        return self.tensors[micro]

    def _timelines(self, micro: int, gpu: Gpu, numbers: Sequence[int] | None = None) -> dict[int, Timeline]:
        return self.steps.timelines(micro, self.job.gradient_accumulation_steps, gpu, numbers)

    def _buffer_sizes(self, micro: int, gpu: Gpu) -> tuple[int, ...]:
        key = micro, kernels_of(gpu)
        if key not in self._sizes:
            self._sizes[key] = self.steps.buffer_sizes(micro, self.job.gradient_accumulation_steps, gpu)
        return self._sizes[key]

    def replayed(self, number: int, micro: int, gpu: Gpu, limit: int) -> Replay:
        """The allocator's replay on the GPU with a number if PyTorch may reserve `limit` bytes of it."""
        replays = self.replays.setdefault((number, micro, self._buffer_sizes(micro, gpu)), [])
        for earlier in replays:
            if earlier.peak_reserved_bytes <= limit < earlier.refused_bytes:
                return earlier
        timeline = self._timelines(micro, gpu, [number])[number]
        kinds, settings = timeline.kinds, AllocatorSettings(expandable_segments=self.job.expandable_segments)
        replays.append(
            replay(timeline.events, timeline.kind_of, kinds.sizes, limit, settings, streams=kinds.streams, levels=False)
        )
        return replays[-1]

    def fits(self, micro: int, limit: int, gpu: Gpu) -> bool:
        """Whether a micro-batch fits; if its tensors alone do not, it is not replayed."""
        if max(self.tensors.get(micro, {0: 0}).values()) > limit:
            return False
        return not any(self.replayed(number, micro, gpu, limit).out_of_memory for number in self.peaks(micro))

    def need(self, micro: int, gpu: Gpu) -> tuple[int, bool]:
        """(device total in bytes, whether it fits), the same as `estimate` returns."""
        outside = outside_bytes(self.job, gpu)
        limits = (plannable_bytes(self.job, gpu) - outside, gpu.usable_bytes - outside)
        needs = []
        for number, peak in self.peaks(micro).items():
            run, fits, fits_without_margin = settle(peak, limits, partial(self.replayed, number, micro, gpu))
            needs.append((not fits_without_margin, not fits, run.peak_reserved_bytes + outside))
        _, does_not_fit, num_bytes = max(needs)
        return num_bytes, not does_not_fit

    def max_batch(self, gpu: Gpu) -> int:
        """The largest micro-batch that fits, the same as `suggest` returns; 0 if none fits."""
        limit = plannable_bytes(self.job, gpu) - outside_bytes(self.job, gpu)
        key = limit, kernels_of(gpu)
        if key not in self.largest:
            self.largest[key] = self._max_batch(limit, gpu)
        return self.largest[key]

    def tokens_per_second(self, gpu: Gpu) -> int:
        """Throughput of one GPU at the largest micro-batch that fits, the same as in its estimate; 0 if none fits.

        Raises:
            UnsupportedError: if the time is not known, for want of a rate of the GPU or of its links.
        """
        if not is_timed(gpu) or link_notes(self.job, gpu):
            raise UnsupportedError(time_notes(self.job, gpu)[0])
        micro = self.max_batch(gpu)
        if not micro:
            return 0
        steps = self.job.gradient_accumulation_steps
        begun = self.steps.begin(micro, steps)
        assert begun.compute is not None
        time = step_time(begun.compute(gpu), begun.communication, with_batch(self.job, micro, steps), gpu)
        assert time is not None
        return round(steps * micro * self.job.sequence_length / time.seconds)

    def _max_batch(self, limit: int, gpu: Gpu) -> int:
        if self.peak(1) > limit:
            return 0
        below = max(micro for micro in self.tensors if self.peak(micro) <= limit)
        above = min((micro for micro in self.tensors if self.peak(micro) > limit), default=None)
        top = largest_by_tensors(below, above, self.peak, limit)
        return largest_batch(0, top, lambda micro: self.fits(micro, limit, gpu))
