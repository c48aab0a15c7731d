"""Steps at many micro-batches from simulations of a few: every storage grows linearly in the micro-batch.

From two samples on a step does the same operations whatever the micro-batch (one sample alone is treated differently),
and the tensors it allocates grow evenly. Simulations at two micro-batches give the sizes, one between them must agree.
If it does not, as when the rows of all samples are padded together, each micro-batch is simulated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from vramplan.analytic.autograd.graph import StorageInfo
from vramplan.analytic.layer_folding import FoldPlan
from vramplan.analytic.second_micro_step import with_second_micro_step
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, do_the_same
from vramplan.analytic.train_step import may_repeat, simulate_evaluation, simulate_step, waiting_batches
from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import with_batch
from vramplan.memory.allocator import SMALL_SIZE
from vramplan.memory.timeline import rounded_bytes
from vramplan.step_time.kernels import Kernel

FIRST, BETWEEN = 2, 3
"""The smallest micro-batch from which sizes grow linearly, and the one at which they are compared."""
LEAST_BEYOND = 129
"""The other end of a line: odd, since sizes that are padded to even numbers do not agree there, and far away, so that
few lines are needed."""

MAX_RECORDS = 6
"""Records of a kind of step that stay in memory: a line has three, and without one every micro-batch has its own."""


class StepAt:
    """A step at a micro-batch: a record with the same events, and what depends on the micro-batch."""

    def __init__(
        self,
        record: StepRecord,
        distinct_sizes: Sequence[int],
        size_of: Sequence[int],
        storage: Callable[[int], StorageInfo],
        distinct_kernels: Callable[[], list[Kernel]],
        kernel_of: Sequence[int],
        num_small: int,
        alike: Sequence[Sequence[int]],
        others: Mapping[int, StorageInfo] | None = None,
    ) -> None:
        """A step at a micro-batch.

        Args:
            record: the record; its storages and kernels may be those of another micro-batch.
            distinct_sizes: bytes of storages, as requested.
            size_of: the number of each storage's size among these.
            storage: gives the storage with a number.
            distinct_kernels: gives the distinct kernels.
            kernel_of: the number of each kernel of the record among these.
            num_small: number of storages that the allocator serves from its small pool; waiting batches, outside
                layers, left out.
            alike: the buffers of kernels, equal ones together.
            others: storages that are not as the other arguments say, by number.
        """
        self.record, self.kernel_of, self.num_small = record, kernel_of, num_small
        self._sizes, self._size_of, self._others = distinct_sizes, size_of, others or {}
        self._storage, self._kernels, self._alike = storage, distinct_kernels, alike

    def storage(self, number: int) -> StorageInfo:
        """The storage with a number."""
        return self._others.get(number) or self._storage(number)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Bytes of each storage, as requested."""
        sizes = [self._sizes[number] for number in self._size_of]
        for number, info in self._others.items():
            sizes[number] = info.num_bytes
        return sizes

    @cached_property
    def small(self) -> bytes:
        """Whether each storage is served from the allocator's small pool; waiting batches, outside layers, are not."""
        waiting = self.record.waiting
        return bytes([size <= SMALL_SIZE and number not in waiting for number, size in enumerate(self.sizes)])

    @cached_property
    def rounded(self) -> array[int]:
        """Bytes of each storage, rounded to the allocator's blocks."""
        distinct = rounded_bytes(self._sizes)
        sizes = array("q", [distinct[number] for number in self._size_of])
        others = rounded_bytes(info.num_bytes for info in self._others.values())
        for number, size in zip(self._others, others, strict=True):
            sizes[number] = size
        return sizes

    @cached_property
    def kernels(self) -> list[Kernel]:
        """Distinct kernels."""
        return self._kernels()

    def on(self, gpu: Gpu) -> StepAt:
        """The step on a GPU, which decides the sizes of the buffers of kernels."""
        if not self.record.buffers:
            return self
        sized, num_large = {}, 0
        for numbers in self._alike:
            info = self.storage(numbers[0]).on(gpu)
            sized.update(dict.fromkeys(numbers, info))
            num_large += len(numbers) * (info.num_bytes > SMALL_SIZE)
        step = self.with_storages({**self._others, **sized})
        step.num_small -= num_large
        return step

    def buffer_sizes(self, gpu: Gpu) -> tuple[int, ...]:
        """Bytes of the distinct buffers of kernels on a GPU."""
        return tuple(self.storage(numbers[0]).on(gpu).num_bytes for numbers in self._alike)

    def with_storages(self, others: Mapping[int, StorageInfo]) -> StepAt:
        """The step with other storages, by number."""
        return StepAt(
            self.record,
            self._sizes,
            self._size_of,
            self._storage,
            self._kernels,
            self.kernel_of,
            self.num_small,
            self._alike,
            others,
        )


class LinearRecord:
    """The record of a step at any micro-batch between two whose records have the same operations.

    Raises:
        ValueError: if the records do not, or if a size between them is no whole number.
    """

    def __init__(self, first: int, low: StepRecord, last: int, high: StepRecord) -> None:
        self.first, self.low, self.last, self.high = first, low, last, high
        span = last - first
        if not do_the_same(low, high):
            raise ValueError("the records have other operations")
        growth: dict[tuple[StorageInfo, StorageInfo], int] = {}
        for pair in zip(low.storages, high.storages, strict=True):
            if pair not in growth:
                growth[pair] = _growth(*pair, span)
        lines: dict[tuple[int, int], int] = {}
        self.size_of: list[int] = []
        """The number of each storage's line."""
        for pair in zip(low.storages, high.storages, strict=True):
            line = pair[0].num_bytes - growth[pair] * first, growth[pair]
            self.size_of.append(lines.setdefault(line, len(lines)))
        self.lines = list(lines)
        """Distinct (bytes at micro-batch 0, bytes that each sample adds)."""
        last_small = [
            (SMALL_SIZE - start) // slope if slope else last if start <= SMALL_SIZE else 0 for start, slope in lines
        ]
        self.last_small = sorted(
            last_small[line] for number, line in enumerate(self.size_of) if number not in low.waiting
        )
        """The largest micro-batch at which each storage is small."""
        numbers: dict[tuple[Kernel, Kernel], int] = {}
        pairs = zip(low.kernels, high.kernels, strict=True)
        self.kernel_of = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
        self.kernels = [_line(*pair, span) for pair in numbers]
        self.alike = grouped(low.buffers, lambda number: (low.storages[number], high.storages[number]))

    def at(self, micro: int) -> StepAt:
        """The step at a micro-batch."""
        offset = micro - self.first

        def kernels() -> list[Kernel]:
            return [
                kernel._replace(
                    flops=kernel.flops + flops * offset,
                    moved_bytes=kernel.moved_bytes + moved * offset,
                    results=kernel.results + results * offset,
                )
                for kernel, flops, moved, results in self.kernels
            ]

        return StepAt(
            self.low,
            [start + slope * micro for start, slope in self.lines],
            self.size_of,
            lambda number: self.storage(number, micro),
            kernels,
            self.kernel_of,
            len(self.last_small) - bisect_left(self.last_small, micro),
            self.alike,
        )

    def storage(self, number: int, micro: int) -> StorageInfo:
        """The storage with a number at a micro-batch."""
        low, high = self.low.storages[number], self.high.storages[number]
        span, offset = self.last - self.first, micro - self.first
        shape = tuple(a + (b - a) // span * offset for a, b in zip(low.shape, high.shape, strict=True))
        start, slope = self.lines[self.size_of[number]]
        return low._replace(num_bytes=start + slope * micro, shape=shape)

    def agrees(self, micro: int, record: StepRecord) -> bool:
        """Whether a record at a micro-batch is the one that the line gives."""
        if not do_the_same(self.low, record):
            return False
        scaled, seen = self.at(micro), set[tuple[StorageInfo, StorageInfo, StorageInfo]]()
        for number, trio in enumerate(zip(self.low.storages, self.high.storages, record.storages, strict=True)):
            if trio not in seen:
                if self.storage(number, micro) != trio[2]:
                    return False
                seen.add(trio)
        return all(
            scaled.kernels[number] == kernel for number, kernel in zip(scaled.kernel_of, record.kernels, strict=True)
        )


def grouped(numbers: Iterable[int], of: Callable[[int], Hashable]) -> list[list[int]]:
    """Numbers of the same value, together."""
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        groups.setdefault(of(number), []).append(number)
    return list(groups.values())


def _growth(low: StorageInfo, high: StorageInfo, span: int) -> int:
    """Bytes that a storage gains with each sample."""
    whole = (high.num_bytes - low.num_bytes) % span == 0 and len(low.shape) == len(high.shape)
    if not whole or high.num_bytes < low.num_bytes or low[1:4] != high[1:4] or low[5:] != high[5:]:
        raise ValueError(f"{low.what} does not grow evenly")
    if any((b - a) % span for a, b in zip(low.shape, high.shape, strict=True)):
        raise ValueError(f"{low.what} does not grow evenly")
    return (high.num_bytes - low.num_bytes) // span


def _line(low: Kernel, high: Kernel, span: int) -> tuple[Kernel, int, int, int]:
    """A kernel, and the operations, bytes and results that it gains with each sample."""
    gains = high.flops - low.flops, high.moved_bytes - low.moved_bytes, high.results - low.results
    if any(gain % span for gain in gains) or low[2:5] != high[2:5]:
        raise ValueError("a kernel's work does not grow evenly")
    flops, moved, results = (gain // span for gain in gains)
    return low, flops, moved, results


class Records:
    """Records of one kind of step at any micro-batch."""

    def __init__(self, simulate: Callable[[int], StepRecord]) -> None:
        self.simulate = simulate
        self.records: dict[int, StepRecord] = {}
        self.line: LinearRecord | None = None
        """The longest line so far."""
        self.is_linear = True
        """Whether all that were simulated lie on a line."""

    def at(self, micro: int, several: bool) -> StepAt:
        """The step at a micro-batch; `several`: others will be asked for as well."""
        needs_line = micro not in self.records and micro not in (FIRST, BETWEEN)  # these two make the line
        if needs_line and several and self.covers(micro):
            assert self.line is not None
            return self.line.at(micro)
        return simulated(self.simulated(micro))

    def covers(self, micro: int) -> bool:
        """Whether a micro-batch lies between two that were simulated, and sizes are linear there."""
        if micro < FIRST:
            return False
        if self.is_linear and (self.line is None or self.line.last < micro):
            line = self._line_to(max(LEAST_BEYOND, (4 << micro.bit_length()) + 1))
            self.is_linear = line is not None
            self.line = line or self.line
        return self.line is not None and micro <= self.line.last

    def simulated(self, micro: int) -> StepRecord:
        """The record at a micro-batch."""
        if micro not in self.records:
            with no_cycle_collection():
                record = self.simulate(micro)
            if len(self.records) == MAX_RECORDS:
                del self.records[next(iter(self.records))]
            self.records[micro] = record
        return self.records[micro]

    def _line_to(self, last: int) -> LinearRecord | None:
        """The line from the first micro-batch to a last one, if a simulation between them agrees.

        That one comes first: a step that does more operations with each sample is large at the last.
        """
        low, between = self.simulated(FIRST), self.simulated(BETWEEN)
        if not do_the_same(low, between):
            return None
        try:
            line = LinearRecord(FIRST, low, last, self.simulated(last))
        except ValueError:
            return None
        return line if line.agrees(BETWEEN, between) else None


def simulated(record: StepRecord) -> StepAt:
    """The step that a record was made of."""
    sizes: dict[int, int] = {}
    kernels: dict[Kernel, int] = {}
    size_of = [sizes.setdefault(info.num_bytes, len(sizes)) for info in record.storages]
    kernel_of = [kernels.setdefault(kernel, len(kernels)) for kernel in record.kernels]
    small = [number for number, info in enumerate(record.storages) if info.num_bytes <= SMALL_SIZE]
    return StepAt(
        record,
        list(sizes),
        size_of,
        record.storages.__getitem__,
        lambda: list(kernels),
        kernel_of,
        sum(number not in record.waiting for number in small),
        grouped(record.buffers, record.storages.__getitem__),
    )


class BatchScaling:
    """The steps and evaluations of one job at any micro-batch and accumulation."""

    def __init__(self, setting: StepSpec, plan: FoldPlan) -> None:
        self.setting, self.plan = setting, plan
        self._alone = Records(lambda micro: simulate_step(self._setting(micro, 1), 1))
        """Steps of one micro-step."""
        self._accumulating = Records(self._two_micro_steps)
        """Steps of two."""

    def step(self, micro: int, steps: int, several: bool = True) -> StepAt:
        """A training step; `several`: other micro-batches will be asked for as well."""
        if steps == 1:
            return self._alone.at(micro, several)
        step = self._accumulating.at(micro, several)
        return step if steps == 2 else self._waiting(step, micro, steps)

    def evaluation(self, micro: int, several: bool = True) -> StepAt:
        """A forward without gradients."""
        return self._evaluations.at(micro, several)

    @cached_property
    def _evaluations(self) -> Records:
        return Records(lambda micro: simulate_evaluation(self._setting(micro, 1)))

    def _setting(self, micro: int, steps: int) -> StepSpec:
        return replace(self.setting, job=with_batch(self.setting.job, micro, steps))

    def _two_micro_steps(self, micro: int) -> StepRecord:
        setting = self._setting(micro, 2)
        if may_repeat(setting.job):
            alone, waiting = self._alone.simulated(micro), waiting_batches(setting)
            with suppress(ValueError):
                return with_second_micro_step(alone, waiting)
        return simulate_step(setting, 2)

    def _waiting(self, step: StepAt, micro: int, steps: int) -> StepAt:
        """The step with all batches of `steps` fetched at once, not of two."""
        waiting = step.record.waiting
        if not waiting:
            return step
        infos = dict(zip(waiting, waiting_batches(self._setting(micro, steps)).storages, strict=True))
        return step.with_storages(infos)
