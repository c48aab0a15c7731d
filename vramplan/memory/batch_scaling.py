"""Live tensors as straight lines in the micro-batch, where steps of several sizes do the same operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vramplan.memory.timeline import BLOCK_BYTES, Mark, Storage, Timeline
from vramplan.units import round_up

COLUMNS = 120
"""Points along a step that a picture shows; of the events that share one, the fullest stands for all."""

Line = tuple[int, int]
"""Bytes at micro-batch 0, and bytes more for each sample."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Micro-batches whose steps have the same events: between `first` and `last` every size is exact."""

    first: int
    last: int
    events: tuple[int, ...]
    """The events that are kept: the fullest of each column, and every one that is the peak somewhere."""
    num_events: int
    marks: tuple[Mark, ...]
    lines: dict[str, tuple[Line, ...]]
    """Live bytes of each category behind each of these events."""


def segments(steps: Mapping[int, Timeline]) -> tuple[Segment, ...]:
    """The steps at ascending micro-batches, neighbours together where one law gives them all to the byte."""
    found: list[list[int]] = []
    levels = {micro: step.live_bytes(with_kernels=False) for micro, step in steps.items()}
    for micro, step in steps.items():
        if found and steps[found[-1][0]].events == step.events and _on_lines(found[-1][0], found[-1][-1], micro, steps):
            found[-1].append(micro)
        else:
            found.append([micro])
    return tuple(_segment(each, steps, levels) for each in found)


def envelope(lines: Iterable[Line], first: int, last: int) -> list[int]:
    """Numbers of the lines of which one is the highest at any point between `first` and `last`.

    >>> envelope([(10, 1), (0, 3), (4, 2), (9, 1)], 1, 9)
    [0, 1]
    """
    highest: dict[int, tuple[int, int]] = {}
    for number, (start, slope) in enumerate(lines):
        if slope not in highest or highest[slope][0] < start:
            highest[slope] = (start, number)
    hull: list[tuple[int, int, int]] = []
    for slope, (start, number) in sorted(highest.items()):
        while len(hull) > 1 and _hidden(hull[-2], hull[-1], (start, slope)):
            hull.pop()
        hull.append((start, slope, number))
    return sorted({max(hull, key=lambda line: line[0] + line[1] * at)[2] for at in range(first, last + 1)})


def _hidden(below: tuple[int, int, int], middle: tuple[int, int, int], above: Line) -> bool:
    """Whether the line between two others, by slope, is nowhere the highest."""
    return (above[0] - below[0]) * (middle[1] - below[1]) >= (middle[0] - below[0]) * (above[1] - below[1])


def _line(first: int, low: int, last: int, high: int) -> Line:
    slope = (high - low) // (last - first) if last > first else 0
    return low - slope * first, slope


def _on_lines(first: int, second: int, last: int, steps: Mapping[int, Timeline]) -> bool:
    """Whether every tensor's size, as it is rounded, is on a straight line at every whole number from `first` on."""
    distinct = {}
    for three in zip(*(steps[micro].storages for micro in (first, second, last)), strict=True):
        distinct[tuple(map(id, three))] = three  # layers share their storages
    return all(
        low.in_kernel or _on_line(first, second, last, low, middle, high) for low, middle, high in distinct.values()
    )


def _on_line(first: int, second: int, last: int, low: Storage, middle: Storage, high: Storage) -> bool:
    more, rest = divmod(high.num_bytes - low.num_bytes, last - first)
    rounded_more = (high.rounded_bytes - low.rounded_bytes) // (last - first)
    return (
        rest == 0
        and middle.num_bytes == low.num_bytes + more * (second - first)
        and all(
            round_up(low.num_bytes + more * further, BLOCK_BYTES) == low.rounded_bytes + rounded_more * further
            for further in range(last - first + 1)
        )
    )


def _segment(micros: Sequence[int], steps: Mapping[int, Timeline], levels: Mapping[int, list[int]]) -> Segment:
    first, last = micros[0], micros[-1]
    low, high = steps[first], steps[last]
    lines = [_line(first, a, last, b) for a, b in zip(levels[first], levels[last], strict=True)]
    stops = [len(lines) * i // COLUMNS for i in range(COLUMNS + 1)]
    fullest = [max(range(a, b), key=levels[last].__getitem__) for a, b in pairwise(stops) if b > a]
    kept = tuple(sorted({*fullest, *envelope(lines, first, last)}))
    ends = [timeline.by_category(kept, with_kernels=False) for timeline in (low, high)]
    by_category = {
        name: tuple(_line(first, a, last, b) for a, b in zip(ends[0][name], ends[1][name], strict=True))
        for name in ends[0]
        if any(ends[1][name])
    }
    return Segment(first, last, kept, len(lines), tuple(low.marks), by_category)
