"""A run whose samples differ in length: micro-batches of other lengths come before the longest.

Tensors of every length leave blocks of their own size in torch's cache, which those of other lengths fit badly.
Reserved memory grows from batch to batch while allocated memory does not, until cudaMalloc is refused and the cache
is emptied.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from vramplan.analytic.run_timeline import STEPS
from vramplan.analytic.unfolded_step import micro_steps
from vramplan.inputs.job import Job
from vramplan.inputs.sample_lengths import step_lengths
from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import JoinedKinds, Timeline


class Pieces:
    """The pieces of a timeline: loading, micro-steps, optimizer's steps, whatever the sizes of its storages."""

    def __init__(self, timeline: Timeline) -> None:
        self.events, self.kind_of = timeline.events, timeline.kind_of
        self.pieces = pieces(timeline)
        self._kinds: dict[tuple[int, int], array[int]] = {}
        self._successors: dict[int, list[tuple[int, int]]] = {}

    def kinds(self, first: int, end: int, storages: array[int]) -> array[int]:
        """The kinds of the storages that the events between two allocate, which are always the same."""
        if (first, end) not in self._kinds:
            self._kinds[first, end] = array("i", [self.kind_of[storage] for storage in storages])
        return self._kinds[first, end]

    def successors(self, piece: int) -> list[tuple[int, int]]:
        """The storages that a step found, which begins there, each with the one that it, the last, left instead."""
        if piece not in self._successors:
            begins = self.pieces[piece][0][1]
            first, second = passes.live_at(self.events, begins - 1), passes.live_at(self.events, len(self.events) - 1)
            before, after = set(first), set(second)
            replaced, new = [one for one in first if one not in after], [one for one in second if one not in before]
            self._successors[piece] = list(zip(replaced, new, strict=False))
        return self._successors[piece]


def varied(timeline_at: Callable[[int], Timeline], job: Job, known: dict[int, Pieces]) -> Timeline:
    """Loading, optimizer steps of as many micro-batches as the job accumulates, and one that the longest ends.

    `timeline_at` gives loading and some steps at a length; the last, with gradients and states there, stands for all
    that follow it. `known` are the pieces of timelines by the id of their events, which are added to it.
    """
    steps, run, several = step_lengths(job), _Run(known), micro_steps(job)
    whole = several + 1  # pieces of a step
    run.append(timeline_at(job.sequence_length), 0)
    for step, lengths in enumerate(steps):
        first = 1 + min(step, STEPS - 1) * whole
        for micro, length in enumerate(lengths):
            run.append(timeline_at(length), first + min(micro, several - 1))
        run.append(timeline_at(lengths[-1]), first + several)
        if step >= STEPS - 1:
            run.hand_on(timeline_at(lengths[-1]), first)
    return run.timeline()


class _Run:
    """A timeline assembled from pieces of others, which number their storages alike."""

    def __init__(self, known: dict[int, Pieces]) -> None:
        self.record = Recorder()
        self.numbers = array("i")
        """Number in this timeline by number in the others; -1 if it is not alive."""
        self.known = known
        self.parts: dict[int, tuple[Timeline, int]] = {}
        """The other timelines by their id, each with the number of its first kind among those of all."""

    def append(self, timeline: Timeline, piece: int) -> None:
        """Append a piece: loading, a micro-step, or an optimizer's step; see :func:`pieces`."""
        parts, first_kind = self._pieces(timeline), self._first_kind(timeline)
        for phase, first, end in parts.pieces[piece]:
            self.record.enter(phase)
            # the previous step's storage is freed once there is a new one
            events, storages, self.numbers = passes.renumbered(
                timeline.events[first:end], self.numbers, len(self.record.kind_of)
            )
            self.record.events.extend(events)
            self.record.splice(passes.shifted(parts.kinds(first, end, storages), first_kind))

    def hand_on(self, timeline: Timeline, piece: int) -> None:
        """Let the storages that the last step leaves, which begins with a piece, replace those it found."""
        for old, new in self._pieces(timeline).successors(piece):
            if self.numbers[new] >= 0:
                self.numbers[old], self.numbers[new] = self.numbers[new], -1

    def timeline(self) -> Timeline:
        """The timeline of all that was appended."""
        kinds = JoinedKinds([timeline.kinds for timeline, _ in self.parts.values()])
        return Timeline(kinds, self.record.kind_of, self.record.events, self.record.marks)

    def _pieces(self, timeline: Timeline) -> Pieces:
        if id(timeline.events) not in self.known:
            self.known[id(timeline.events)] = Pieces(timeline)
        return self.known[id(timeline.events)]

    def _first_kind(self, timeline: Timeline) -> int:
        if id(timeline) not in self.parts:
            self.parts[id(timeline)] = timeline, sum(len(other.kinds) for other, _ in self.parts.values())
            self.numbers.extend(array("i", [-1]) * (len(timeline.kind_of) - len(self.numbers)))
        return self.parts[id(timeline)][1]


def pieces(timeline: Timeline) -> list[list[tuple[str, int, int]]]:
    """A timeline in pieces, each (phase, first event, end): loading, micro-steps, optimizer's steps."""
    marks = timeline.marks
    ends = [mark.first_event for mark in marks[1:]] + [len(timeline.events)]
    found: list[list[tuple[str, int, int]]] = []
    for mark, end in zip(marks, ends, strict=True):
        if mark.phase != "backward":
            found.append([])
        found[-1].append((mark.phase, mark.first_event, end))
    return found
