"""Sizes that grow linearly in the micro-batch, if steps of several sizes do the same operations."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from vramplan.dataclass import dataclass
from vramplan.inputs.gpu import Gpu
from vramplan.memory import passes
from vramplan.memory.timeline import BLOCK_BYTES, Kinds, Mark, Storage, Timeline
from vramplan.units import round_up

COLUMNS = 120
"""Points along a step that a picture shows; of the events that share one, the fullest stands for all."""


class LinearSize(NamedTuple):
    """Bytes that grow by the same amount with each sample of the micro-batch."""

    at_zero: int
    """Bytes at micro-batch 0, by extrapolation."""
    per_sample: int

    @classmethod
    def through(cls, first: int, first_bytes: int, last: int, last_bytes: int) -> LinearSize:
        """The size with these bytes at two micro-batches; at the second only if the difference divides evenly."""
        per_sample = (last_bytes - first_bytes) // (last - first) if last > first else 0
        return cls(first_bytes - per_sample * first, per_sample)

    def at(self, micro: int) -> int:
        """Bytes at a micro-batch."""
        return self.at_zero + self.per_sample * micro


def interpolate(first: int, low: Timeline, last: int, high: Timeline, micro: int, gpu: Gpu) -> Timeline:
    """The timeline at a micro-batch on a GPU, from those at two others, which have the same events."""
    numbers: dict[tuple[int, int], int] = {}
    pairs = zip(low.kind_of, high.kind_of, strict=True)
    kind_of = array("i", [numbers.setdefault(pair, len(numbers)) for pair in pairs])

    def storage_at(one: Storage, other: Storage) -> Storage:
        if one.buffer is not None and other.buffer is not None:
            pairs = zip(one.buffer.numbers, other.buffer.numbers, strict=True)
            numbers = tuple(LinearSize.through(first, a, last, b).at(micro) for a, b in pairs)
            buffer = one.buffer._replace(numbers=numbers)
            return Storage(buffer.num_bytes(gpu), one.category, one.label, one.formula, one.in_kernel, buffer=buffer)
        if one.num_bytes == other.num_bytes:
            return one
        size = LinearSize.through(first, one.num_bytes, last, other.num_bytes).at(micro)
        return Storage(size, one.category, one.label, f"{size} bytes at micro-batch {micro}", one.in_kernel)

    kinds = Kinds(storage_at(low.kinds[one], high.kinds[other]) for one, other in numbers)
    return Timeline(kinds, kind_of, low.events, low.marks)


@dataclass(frozen=True, slots=True)
class Segment:
    """Micro-batches whose steps have the same events: between `first` and `last` every size is exact."""

    first: int
    last: int
    events: tuple[int, ...]
    """The events that are shown: the fullest of each column, and every one that is the peak at some micro-batch."""
    num_events: int
    marks: tuple[Mark, ...]
    lines: dict[str, tuple[LinearSize, ...]]
    """Live bytes of each category after each of these events."""


def segments(steps: Mapping[int, Timeline]) -> tuple[Segment, ...]:
    """The steps at ascending micro-batches, neighbours joined if linear sizes give them all to the byte."""
    groups: list[list[int]] = []
    levels = {micro: step.live_bytes(with_kernels=False) for micro, step in steps.items()}
    for micro, step in steps.items():
        if groups and steps[groups[-1][0]].events == step.events and _are_linear(groups[-1], micro, steps):
            groups[-1].append(micro)
        else:
            groups.append([micro])
    return tuple(_segment(micros, steps, levels) for micros in groups)


def envelope(lines: Iterable[tuple[int, int]], first: int, last: int) -> list[int]:
    """Numbers of the lines that are the highest at some whole point between `first` and `last`.

    A line is (value at 0, slope).

    >>> envelope([(10, 1), (0, 3), (4, 2), (9, 1)], 1, 9)
    [0, 1]
    """
    highest: dict[int, tuple[int, int]] = {}
    for number, (start, slope) in enumerate(lines):
        if slope not in highest or highest[slope][0] < start:
            highest[slope] = (start, number)
    hull: list[tuple[int, int, int]] = []
    for slope, (start, number) in sorted(highest.items()):
        while len(hull) > 1 and _is_hidden(hull[-2], hull[-1], (start, slope)):
            hull.pop()
        hull.append((start, slope, number))
    return sorted({max(hull, key=lambda line: line[0] + line[1] * at)[2] for at in range(first, last + 1)})


def _is_hidden(below: tuple[int, int, int], middle: tuple[int, int, int], above: tuple[int, int]) -> bool:
    """Whether the line between two others, by slope, is nowhere the highest."""
    return (above[0] - below[0]) * (middle[1] - below[1]) >= (middle[0] - below[0]) * (above[1] - below[1])


def _are_linear(group: Sequence[int], last: int, steps: Mapping[int, Timeline]) -> bool:
    """Whether every tensor's rounded size is linear at every whole number from the group's first to `last`."""
    first, middle = group[0], group[-1]
    timelines = [steps[micro] for micro in (first, middle, last)]
    distinct = set(zip(*(timeline.kind_of for timeline in timelines), strict=True))
    for kinds in distinct:
        low, between, high = (timeline.kinds[kind] for timeline, kind in zip(timelines, kinds, strict=True))
        if not low.in_kernel and not _is_linear(first, middle, last, low, between, high):
            return False
    return True


def _is_linear(first: int, middle: int, last: int, low: Storage, between: Storage, high: Storage) -> bool:
    size = LinearSize.through(first, low.num_bytes, last, high.num_bytes)
    rounded = LinearSize.through(first, low.rounded_bytes, last, high.rounded_bytes)
    return (
        size.at(last) == high.num_bytes
        and size.at(middle) == between.num_bytes
        and all(round_up(size.at(micro), BLOCK_BYTES) == rounded.at(micro) for micro in range(first, last + 1))
    )


def _segment(micros: Sequence[int], steps: Mapping[int, Timeline], levels: Mapping[int, Sequence[int]]) -> Segment:
    first, last = micros[0], micros[-1]
    low, high = steps[first], steps[last]
    num_events = len(low.events)
    stops = [num_events * i // COLUMNS for i in range(COLUMNS + 1)]
    fullest = [passes.index_of_highest(levels[last], a, b) for a, b in pairwise(stops) if b > a]
    first_event: dict[tuple[int, int], int] = {}
    for number, pair in enumerate(zip(levels[first], levels[last], strict=True)):
        first_event.setdefault(pair, number)
    lines = [LinearSize.through(first, a, last, b) for a, b in first_event]
    numbers = list(first_event.values())
    events = tuple(sorted({*fullest, *(numbers[line] for line in envelope(lines, first, last))}))
    start, end = (timeline.by_category(events, with_kernels=False) for timeline in (low, high))
    by_category = {name: tuple(_linear_sizes(first, start[name], last, end[name])) for name in start if any(end[name])}
    return Segment(first, last, events, num_events, tuple(low.marks), by_category)


def _linear_sizes(first: int, low: Sequence[int], last: int, high: Sequence[int]) -> list[LinearSize]:
    return [LinearSize.through(first, a, last, b) for a, b in zip(low, high, strict=True)]
