"""A run whose samples differ in length: micro-batches of other lengths come before the longest.

Tensors of every length leave blocks of their own size in torch's cache, which those of other lengths fit badly.
Reserved memory grows from batch to batch while allocated memory does not, until cudaMalloc is refused and the cache
is emptied.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from vramplan.analytic.unfolded_step import micro_steps
from vramplan.inputs.job import Job
from vramplan.inputs.sample_lengths import batch_lengths
from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Timeline


def varied(timeline_at: Callable[[int], Timeline], job: Job) -> Timeline:
    """Loading, optimizer steps of as many micro-batches as the job accumulates, and one that the longest ends.

    `timeline_at` gives loading and two steps at a length; the second, with gradients and states there, stands for all
    that follow it.
    """
    (*others, longest), run = batch_lengths(job), _Run()
    accumulated, several = job.gradient_accumulation_steps, micro_steps(job)
    whole = several + 1  # pieces of a step
    run.append(timeline_at(longest), 0)
    steps = [others[number : number + accumulated] for number in range(0, len(others), accumulated)]
    for step, lengths in enumerate([*steps, [others[0], longest][-several:]]):
        first = 1 + min(step, 1) * whole
        for micro, length in enumerate(lengths):
            run.append(timeline_at(length), first + min(micro, several - 1))
        run.append(timeline_at(lengths[-1]), first + several)
        if step:
            run.hand_on(timeline_at(lengths[-1]), first)
    return run.record.timeline()


class _Run:
    """A timeline assembled from pieces of others, which number their storages alike."""

    def __init__(self) -> None:
        self.record = Recorder()
        self.numbers = array("i")
        """Number in this timeline by number in the others; -1 if it is not alive."""
        self.kinds: dict[int, array[int]] = {}
        """For each other timeline the kinds of its storages here, by its id."""

    def append(self, timeline: Timeline, piece: int) -> None:
        """Append a piece: loading, a micro-step, or an optimizer's step; see :func:`pieces`."""
        record = self.record
        kind_of = self.kinds.get(id(timeline))
        if kind_of is None:
            first = record.add_kinds(timeline.kinds)
            kind_of = self.kinds[id(timeline)] = passes.shifted(timeline.kind_of, first)
        self.numbers.extend(array("i", [-1]) * (len(kind_of) - len(self.numbers)))
        for phase, first, last in pieces(timeline)[piece]:
            record.enter(phase)
            # the previous step's storage is freed once there is a new one
            events, storages, self.numbers = passes.renumbered(
                timeline.events[first:last], self.numbers, len(record.kind_of)
            )
            record.splice(array("i", [kind_of[number] for number in storages]))
            record.events.extend(events)

    def hand_on(self, timeline: Timeline, piece: int) -> None:
        """Let the storages that a second step leaves, which begins with a piece, replace those the first left."""
        begins = pieces(timeline)[piece][0][1]
        before = _left(timeline.events[:begins])
        freed = {~event for event in timeline.events[begins:] if event < 0}
        for old, new in zip([one for one in before if one in freed], _left(timeline.events[begins:]), strict=False):
            if self.numbers[new] >= 0:
                self.numbers[old], self.numbers[new] = self.numbers[new], -1


def _left(events: Sequence[int]) -> list[int]:
    """Storages that are allocated and not freed, in order."""
    live: dict[int, None] = {}
    for event in events:
        if event >= 0:
            live[event] = None
        else:
            live.pop(~event, None)
    return list(live)


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
