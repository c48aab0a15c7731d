"""Micro-steps of a run: one that begins as an earlier one did is written from its events, with numbers of its own."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.tasks.reference import is_of_reference
from vramplan.step_time.communication import Sent

if TYPE_CHECKING:
    from vramplan.analytic.strategies.ddp import Strategy


class State(NamedTuple):
    """What a strategy brings into a micro-step from those before."""

    key: Hashable
    """Equal for states that differ in the numbers of their storages alone."""
    storages: tuple[int, ...]
    """The numbers, in an order that the key determines."""


class _Recorded(NamedTuple):
    """A micro-step in the recorder."""

    events: slice
    offset: int
    """Number of the simulated step's first storage."""
    first_storage: int
    """Number of the first storage that the strategy added."""
    kinds: array[int]
    """The kinds of all that it added."""
    before: State
    after: State
    sent: Sent


class MicroSteps:
    """Records the micro-steps of a run one after another."""

    def __init__(self, share: Strategy, events: array[int], reference: Strategy | None = None) -> None:
        self.share, self.events, self.reference = share, events, reference
        self.recorded: dict[Hashable, _Recorded] = {}
        """By number within the step and state."""

    def record(self, number: int, sections: Sequence[tuple[UnfoldedSection, int]], offset: int) -> None:
        """Record the micro-step with this number in its optimizer step.

        Args:
            number: 0 without earlier gradients, 1 on top of them.
            sections: its sections, each with the index where its events end.
            offset: number of the simulated step's first storage.
        """
        before = self.share.state() if self.reference is None else None
        earlier = None if before is None else self.recorded.get((number, before.key))
        if before is not None and earlier is not None:
            self._repeat(earlier, before, offset, sections)
            return
        record, share = self.share.record, self.share
        first_event, first_storage, sent = len(record.events), len(record.kind_of), share.sent
        share.sent = Sent()
        self._run(sections, offset)
        sent.add_all(share.sent)
        micro_step, share.sent = share.sent, sent
        after = share.state()
        if before is not None and after is not None:
            events, kinds = slice(first_event, len(record.events)), record.kind_of[first_storage:]
            self.recorded[number, before.key] = _Recorded(
                events, offset, first_storage, kinds, before, after, micro_step
            )

    def _run(self, sections: Sequence[tuple[UnfoldedSection, int]], offset: int) -> None:
        model = share = self.share
        previous = ""
        if self.reference is not None:
            self.reference.sent = share.sent
        for piece, end in sections:
            if previous.startswith("backward") and piece.phase != previous:
                share.backward_ends()
            if piece.phase != previous and not previous.startswith("backward"):
                model.forward_ends()
            previous = piece.phase
            share.record.enter(previous.partition(".")[0])
            model = share if self.reference is None or not is_of_reference(piece.phase) else self.reference
            model.run_section(piece, self.events[piece.first_event : end], offset)
        if previous.startswith("backward"):
            share.backward_ends()

    def _repeat(
        self, earlier: _Recorded, before: State, offset: int, sections: Sequence[tuple[UnfoldedSection, int]]
    ) -> None:
        share, record = self.share, self.share.record
        replaced = dict(zip(earlier.before.storages, before.storages, strict=True))
        number = _renumber(earlier, offset, len(record.kind_of), replaced)
        added = len(record.events) - earlier.events.start
        marks = [mark for mark in record.marks if earlier.events.start <= mark.first_event < earlier.events.stop]
        record.enter(sections[0][0].phase.partition(".")[0])
        record.kind_of.extend(earlier.kinds)
        events = record.events[earlier.events]
        record.events.extend([number(event) if event >= 0 else ~number(~event) for event in events])
        for mark in marks:
            record.enter(mark.phase, mark.first_event + added)
        share.sent.add_all(earlier.sent)
        share.phase = sections[-1][0].phase
        share.resume(State(earlier.after.key, tuple(map(number, earlier.after.storages))))


def _renumber(earlier: _Recorded, offset: int, first_storage: int, replaced: Mapping[int, int]) -> Callable[[int], int]:
    """The number in a later micro-step of each storage of an earlier one."""
    own, of_step = first_storage - earlier.first_storage, offset - earlier.offset

    def number(storage: int) -> int:
        if storage >= earlier.first_storage:
            return storage + own
        moved = replaced.get(storage)
        if moved is not None:
            return moved
        return storage + of_step if storage >= earlier.offset else storage

    return number
