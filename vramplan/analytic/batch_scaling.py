"""Steps at many micro-batches from simulations of a few: every storage grows linearly in the micro-batch.

From two samples on a step does the same operations whatever the micro-batch (one sample alone is treated differently),
and the tensors it allocates grow evenly. Simulations at two neighbours give the sizes; a simulation further out than
any requested micro-batch must agree with them. If it does not, as when the rows of all samples are padded together,
each micro-batch is simulated.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property

from vramplan.analytic.layer_folding import FoldPlan
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.train_step import simulate_step
from vramplan.analytic.unfolded_step import Step, micro_steps, no_cycle_collection
from vramplan.inputs.gpu import Gpu
from vramplan.memory.allocator import SMALL_SIZE
from vramplan.memory.batch_scaling import LinearSize, ScaledTimeline
from vramplan.memory.overheads import cublas_workspace

FIRST = 2
"""The smallest micro-batch from which sizes grow linearly."""


class BatchScaling:
    """The timelines of one step at any micro-batch; GPUs differ in the size of cuBLAS's workspace alone."""

    def __init__(self, setting: StepSpec, plan: FoldPlan) -> None:
        self.setting, self.plan = setting, plan
        self.verified = 0
        """The largest micro-batch that was simulated and agrees with the linear sizes."""
        self.is_linear = True
        """Whether all that were simulated agree."""
        self.timelines: dict[tuple[int, int], ScaledTimeline] = {}
        """By the number of small tensors, some of which are left out
        (:func:`vramplan.analytic.layer_folding.unfold`), and the bytes of that workspace."""

    def covers(self, micro: int) -> bool:
        """Whether a micro-batch lies between two whose sizes are linear."""
        if micro < FIRST:
            return False
        with no_cycle_collection():
            while self.verified < micro and self.is_linear:
                beyond = (4 << micro.bit_length()) + 1  # odd: sizes that are padded to even numbers do not agree
                self.is_linear = self._agrees(self._second, FIRST + 1) and self._agrees(self._at(beyond), beyond)
                self.verified = beyond if self.is_linear else self.verified
        return micro <= self.verified

    def timeline(self, micro: int, gpu: Gpu) -> ScaledTimeline:
        """The timeline for a micro-batch that is covered."""
        sizes = [size.at(micro) for size in self._sizes]
        key = sum(size <= SMALL_SIZE for size in sizes), cublas_workspace(gpu).num_bytes
        if key not in self.timelines:
            with no_cycle_collection():
                self.timelines[key] = self._timeline(micro, sizes, gpu)
        return self.timelines[key]

    def _timeline(self, micro: int, sizes: list[int], gpu: Gpu) -> ScaledTimeline:
        net = copy(self._first)
        net.tape = copy(net.tape)
        net.tape.storages = [
            # the shape keeps storages apart that grow differently
            info._replace(num_bytes=num_bytes, shape=(size.per_sample,))
            for info, num_bytes, size in zip(net.tape.storages, sizes, self._sizes, strict=True)
        ]
        step = Step(self.setting, self.plan, gpu, net=net)
        sources = zip(step.storages, step.unfolded.source, strict=True)
        growth = {id(storage): self._sizes[source].per_sample for storage, source in sources}
        return ScaledTimeline(SimulatedRun(step).timeline, micro, growth)

    def _at(self, micro: int) -> Modules:
        job = self.setting.job.model_copy(update={"micro_batch_size": micro})
        return simulate_step(replace(self.setting, job=job), micro_steps(job))

    @cached_property
    def _first(self) -> Modules:
        return self._at(FIRST)

    @cached_property
    def _second(self) -> Modules:
        return self._at(FIRST + 1)

    @cached_property
    def _sizes(self) -> list[LinearSize]:
        """Size of each simulated storage."""
        pairs = zip(self._first.tape.storages, self._second.tape.storages, strict=True)
        return [LinearSize.through(FIRST, low.num_bytes, FIRST + 1, high.num_bytes) for low, high in pairs]

    def _agrees(self, net: Modules, micro: int) -> bool:
        """Whether a simulation has the events of the first, and the linear sizes."""
        return net.tape.events == self._first.tape.events and all(
            info.num_bytes == size.at(micro) for size, info in zip(self._sizes, net.tape.storages, strict=True)
        )
