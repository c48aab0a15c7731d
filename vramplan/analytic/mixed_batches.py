"""A run whose micro-batches differ in samples and in length, assembled from runs of equal micro-batches.

Tensors of every shape leave blocks of their own size in torch's cache, which those of other shapes fit badly. Reserved
memory grows from batch to batch while allocated memory does not, until cudaMalloc is refused and the cache is emptied.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vramplan.analytic.run_timeline import STEPS
from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, JoinedKinds, Kinds, Storage, Timeline


class BatchShape(NamedTuple):
    """The shape of a micro-batch."""

    samples: int
    length: int
    """Tokens of the longest sample."""


class Piece(NamedTuple):
    """A part of a run that is always the same: loading, a micro-step, or an optimizer's step."""

    phases: list[tuple[str, int, int]]
    """(phase, first event, end)."""
    before: Sequence[int]
    """Storages alive before it, in order of allocation."""
    after: Sequence[int]
    """The same behind it."""


class Pieces:
    """The pieces of a timeline, whatever the sizes of its storages."""

    def __init__(self, timeline: Timeline) -> None:
        self.events, self.kind_of = timeline.events, timeline.kind_of
        ends = [mark.first_event for mark in timeline.marks[1:]] + [len(self.events)]
        phases: list[list[tuple[str, int, int]]] = []
        for mark, end in zip(timeline.marks, ends, strict=True):
            if mark.phase != "backward":
                phases.append([])
            phases[-1].append((mark.phase, mark.first_event, end))
        self.pieces: list[Piece] = []
        alive: Sequence[int] = ()
        for several in phases:
            before, alive = alive, passes.live_at(self.events, several[-1][2] - 1)
            self.pieces.append(Piece(several, before, alive))
        outlive = set[int]().union(*(piece.after for piece in self.pieces))
        kinds = {kind: timeline.kinds[kind] for kind in {self.kind_of[number] for number in outlive}}
        self.names = {number: _name(kinds[self.kind_of[number]]) for number in outlive}
        """What each storage that outlives a piece is, in words: the same in timelines of other shapes."""
        self._kinds: dict[tuple[int, int], array[int]] = {}

    def kinds(self, first: int, end: int, storages: array[int]) -> array[int]:
        """The kinds of the storages that the events between two allocate, which are always the same."""
        if (first, end) not in self._kinds:
            self._kinds[first, end] = array("i", [self.kind_of[storage] for storage in storages])
        return self._kinds[first, end]


def _name(storage: Storage) -> tuple[str, str]:
    return storage.category, storage.label


def mixed(
    timeline_at: Callable[[BatchShape], Timeline],
    steps: Sequence[Sequence[BatchShape]],
    micro_steps: int,
    known: dict[int, Pieces],
    empties_cache: bool = False,
) -> Timeline:
    """Loading, and optimizer steps of these micro-batches.

    Args:
        timeline_at: gives loading and some steps of micro-batches of one shape; the last of these steps, with gradients
            and states there, stands for all that follow it.
        steps: the micro-batches of each optimizer step.
        micro_steps: micro-batches in a step of those timelines; the last stands for all that follow it.
        known: pieces of timelines by the id of their events, which are added to it.
        empties_cache: whether ``torch.cuda.empty_cache()`` is called before a step of another shape than the last.
    """
    run = _Run(known)
    run.append(timeline_at(steps[0][0]), 0)
    for step, batches in enumerate(steps):
        first = 1 + min(step, STEPS - 1) * (micro_steps + 1)
        if empties_cache and step and batches[0] != steps[step - 1][-1]:
            run.empty_cache()
        for micro, batch in enumerate(batches):
            run.append(timeline_at(batch), first + min(micro, micro_steps - 1))
        run.append(timeline_at(batches[-1]), first + micro_steps)
    return run.timeline()


class _Run:
    """A timeline assembled from pieces of others."""

    def __init__(self, known: dict[int, Pieces]) -> None:
        self.record = Recorder()
        self.known = known
        self.alive: list[tuple[tuple[str, str], int]] = []
        """Name, and number in this timeline, of each storage that is alive, in order of allocation."""
        self.parts: dict[int, tuple[Timeline, int]] = {}
        """The other timelines by their id, each with the number of its first kind among those of all."""
        self.own = Kinds([EMPTY_CACHE])
        """The kinds that are in none of them, which come first."""

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        number = self.record.splice(array("i", [0]))
        self.record.events.extend((number, ~number))

    def append(self, timeline: Timeline, number: int) -> None:
        """Append the piece with a number."""
        parts, first_kind = self._pieces(timeline), self._first_kind(timeline)
        piece = parts.pieces[number]
        numbers, others = self._handed_on(parts, piece)
        self.record.free_all(others)
        for phase, first, end in piece.phases:
            self.record.enter(phase)
            events, storages, numbers = passes.renumbered(timeline.events[first:end], numbers, len(self.record.kind_of))
            self.record.events.extend(events)
            self.record.splice(passes.shifted(parts.kinds(first, end, storages), first_kind))
        self.alive = [(parts.names[one], numbers[one]) for one in piece.after if numbers[one] >= 0]

    def _handed_on(self, parts: Pieces, piece: Piece) -> tuple[array[int], list[int]]:
        """The number here of each storage that a piece finds, and the numbers of those alive that it does not know.

        Storages of one name follow each other in the order of their allocation. Some have no counterpart: timelines of
        other shapes leave out other small tensors (:func:`vramplan.analytic.layer_folding.unfold`), and a last
        micro-step that stands for one before it leaves what DeepSpeed drops with the step.
        """
        by_name: dict[tuple[str, str], list[int]] = defaultdict(list)
        for name, number in reversed(self.alive):
            by_name[name].append(number)
        numbers = array("i", [-1]) * len(parts.kind_of)
        for storage in piece.before:
            if same := by_name[parts.names[storage]]:
                numbers[storage] = same.pop()
        return numbers, [number for several in by_name.values() for number in reversed(several)]

    def timeline(self) -> Timeline:
        """The timeline of all that was appended."""
        kinds = JoinedKinds([self.own, *(timeline.kinds for timeline, _ in self.parts.values())])
        return Timeline(kinds, self.record.kind_of, self.record.events, self.record.marks)

    def _pieces(self, timeline: Timeline) -> Pieces:
        if id(timeline.events) not in self.known:
            self.known[id(timeline.events)] = Pieces(timeline)
        return self.known[id(timeline.events)]

    def _first_kind(self, timeline: Timeline) -> int:
        if id(timeline) not in self.parts:
            self.parts[id(timeline)] = (
                timeline,
                len(self.own) + sum(len(other.kinds) for other, _ in self.parts.values()),
            )
        return self.parts[id(timeline)][1]
