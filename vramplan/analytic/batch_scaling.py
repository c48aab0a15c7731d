"""Steps at many micro-batches from plays at a few: tensor by tensor a straight line in the micro-batch.

From two samples on a step does the same operations whatever the micro-batch (one sample alone is treated in ways of its
own), and what they make grows evenly. Plays at two neighbours give the lines; a play further out than any micro-batch
that is asked for must lie on them. Where it does not, as where rows of all samples are padded together, there is no
law, and each micro-batch is played.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from vramplan.analytic.layer_folding import FoldPlan
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.played_step import Step, micro_steps, no_cycle_collection
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.train_step import play
from vramplan.inputs.gpu import Gpu
from vramplan.memory.allocator import SMALL_SIZE
from vramplan.memory.overheads import cublas_workspace
from vramplan.memory.timeline import BLOCK_BYTES, Timeline
from vramplan.units import round_up

FIRST = 2
"""The least micro-batch that the lines go through."""


class LinearSize(NamedTuple):
    """How the bytes of a storage go on from some micro-batch."""

    num_bytes: int
    more: int
    """With each further sample."""
    in_kernel: bool


class ScaledStep:
    """The whole model's step at one micro-batch, and how its sizes go on from there (`grows`, by id of the storage)."""

    def __init__(self, timeline: Timeline, micro: int, grows: Mapping[int, int] | None = None) -> None:
        grows = grows or {}
        distinct = {id(one): one for one in timeline.storages}  # layers share their storages
        lines = {key: LinearSize(one.num_bytes, grows.get(key, 0), one.in_kernel) for key, one in distinct.items()}
        numbers = {line: number for number, line in enumerate(dict.fromkeys(lines.values()))}
        kinds = {key: numbers[line] for key, line in lines.items()}
        self.micro, self.lines = micro, list(numbers)
        self.events, self.streams = timeline.events, timeline.streams()
        self.kinds = [kinds[id(one)] for one in timeline.storages]
        """For each storage which of the lines it is on."""
        self.steps = [self.kinds[event] if event >= 0 else ~self.kinds[~event] for event in self.events]
        """The same for each event; ``~kind`` for what is freed."""

    def _at(self, micro: int) -> list[int]:
        more = micro - self.micro
        return [round_up(line.num_bytes + line.more * more, BLOCK_BYTES) for line in self.lines]

    def sizes(self, micro: int) -> list[int]:
        """Rounded bytes of every storage."""
        at = self._at(micro)
        return [at[kind] for kind in self.kinds]

    def peak(self, micro: int) -> int:
        """Highest sum of live tensors, without what kernels take for themselves."""
        at = [0 if line.in_kernel else size for line, size in zip(self.lines, self._at(micro), strict=True)]
        signed = [*at, *(-size for size in reversed(at))]
        return max(accumulate([signed[step] for step in self.steps]))


class BatchScaling:
    """The steps of one setting; cards differ in cuBLAS's workspace alone."""

    def __init__(self, setting: StepSpec, plan: FoldPlan) -> None:
        self.setting, self.plan = setting, plan
        self.reach = 0
        """The largest micro-batch that was played and found on the lines."""
        self.broken = False
        """Whether one was not."""
        self.courses: dict[tuple[int, int], ScaledStep] = {}
        """By the number of small tensors, some of which are left out
        (:func:`vramplan.analytic.layer_folding.unfold`), and the bytes of that workspace."""

    def holds(self, micro: int) -> bool:
        """Whether a micro-batch lies between two that are on the lines."""
        if micro < FIRST:
            return False
        with no_cycle_collection():
            while self.reach < micro and not self.broken:
                beyond = (4 << micro.bit_length()) + 1  # odd: what is padded to even numbers shows
                self.broken = not (
                    self._continues(self._second, FIRST + 1) and self._continues(self._at(beyond), beyond)
                )
                self.reach = self.reach if self.broken else beyond
        return micro <= self.reach

    def course(self, micro: int, card: Gpu) -> ScaledStep:
        """The step at a micro-batch that the law holds for, or at one from which it goes on to there."""
        sizes = [first + more * (micro - FIRST) for first, more in self._lines]
        key = sum(size <= SMALL_SIZE for size in sizes), cublas_workspace(card).num_bytes
        if key not in self.courses:
            with no_cycle_collection():
                self.courses[key] = self._course(micro, sizes, card)
        return self.courses[key]

    def _course(self, micro: int, sizes: list[int], card: Gpu) -> ScaledStep:
        net = copy(self._first)
        net.tape = copy(net.tape)
        net.tape.storages = [
            one._replace(num_bytes=size, shape=(more,))  # those that grow differently are not described as one
            for one, size, (_, more) in zip(net.tape.storages, sizes, self._lines, strict=True)
        ]
        step = Step(self.setting, self.plan, card, net=net)
        sources = zip(step.storages, step.played.source, strict=True)
        return ScaledStep(
            SimulatedRun(step).timeline, micro, {id(one): self._lines[source][1] for one, source in sources}
        )

    def _at(self, micro: int) -> Modules:
        job = self.setting.job.model_copy(update={"micro_batch_size": micro})
        return play(replace(self.setting, job=job), micro_steps(job))

    @cached_property
    def _first(self) -> Modules:
        return self._at(FIRST)

    @cached_property
    def _second(self) -> Modules:
        return self._at(FIRST + 1)

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        """Bytes of each played storage at the first micro-batch, and bytes more for each further sample."""
        both = zip(self._first.tape.storages, self._second.tape.storages, strict=True)
        return [(one.num_bytes, other.num_bytes - one.num_bytes) for one, other in both]

    def _continues(self, net: Modules, micro: int) -> bool:
        """Whether a play does the same as the first, on the lines."""
        return net.tape.events == self._first.tape.events and all(
            one.num_bytes == first + more * (micro - FIRST)
            for (first, more), one in zip(self._lines, net.tape.storages, strict=True)
        )
