"""Repeated layers are played a few times and multiplied: from a short recording to the whole model's.

Layers come in periods (one layer for Llama, six for Gemma 3). The tape plays the first layers, one period that stands
for all that are left out, and the last. In the record a storage is known by the section it was made in (phase and
layer) and its place there, so the events of the middle period can be written out for every layer it stands for: what
it says about its own layer, the one before or the one after, holds for each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from vramplan.analytic.autograd.graph import LayerSection
from vramplan.analytic.autograd.tape import Tape
from vramplan.memory.allocator import SMALL_SIZE

HEAD, TAIL = 2, 1
"""Layers played before and after the repeated period: the first may differ, the next is an ordinary neighbour."""
STACK = 1 << 16
"""A model may have several stacks of layers; those of stack n are numbered from n times this."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Which of a stack's layers are played and which one stands for others; numbers include the stack's own."""

    played: tuple[Hashable, ...]
    first: int
    """First layer of the repeated period."""
    period: int
    copies: int
    """How often the period stands in the whole model."""
    base: int = 0
    """The stack's first layer."""

    @property
    def added(self) -> int:
        """Layers that are not played."""
        return (self.copies - 1) * self.period

    def layers(self) -> list[int]:
        """For each layer of the whole model the played one that stands for it."""
        end = self.first + self.period
        repeated = list(range(self.first, end)) * self.copies
        return [*range(self.base, self.first), *repeated, *range(end, self.base + len(self.played))]

    def copies_of(self, layer: int) -> int:
        """How many layers of the model the played `layer` stands for."""
        return self.copies if self.first <= layer < self.first + self.period else 1

    def is_across(self, one: int, other: int) -> bool:
        """Whether the repeated period lies between two played layers."""
        return min(one, other) < self.first and max(one, other) >= self.first + self.period

    def place(self, layer: int) -> int:
        """The last layer of the whole model that the played `layer` stands for, or the only one."""
        return layer + self.added if layer >= self.first else layer


def fold(kinds: Sequence[Hashable], stack: int = 0, head: int = HEAD, tail: int = TAIL) -> Fold:
    """The shortest play of a stack with these layers; `head` first and `tail` last ones stand for themselves alone.

    So do first layers of a kind that does not come back (the dense ones of some mixtures of experts).
    """
    count, base, lead = len(kinds), stack * STACK, leading(kinds)
    head += lead
    for period in range(1, (count - head - tail) // 2 + 1):
        if all(kinds[i] == kinds[i + period] for i in range(lead, count - period)):
            left_out = (count - head - tail - period) // period
            return Fold(tuple(kinds[: count - left_out * period]), base + head, period, left_out + 1, base)
    return Fold(tuple(kinds), base + count, 0, 1, base)


def leading(kinds: Sequence[Hashable]) -> int:
    """First layers of one kind that no later layer is of; none where all are alike."""
    alike = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
    return alike if alike < len(kinds) and kinds[0] not in kinds[alike:] else 0


class FoldPlan(NamedTuple):
    """How the stacks of a model are played, in the order that their weights are loaded."""

    stacks: tuple[Fold, ...]

    def of(self, layer: int) -> Fold:
        """The stack that a layer belongs to."""
        return next(one for one in self.stacks if one.base // STACK == layer // STACK)

    def copies_of(self, layer: int | None) -> int:
        """How many layers of the model the played `layer` stands for."""
        return 1 if layer is None else self.of(layer).copies_of(layer)


class UnfoldedSection(NamedTuple):
    """A stretch of the unfolded record: one layer's share of one phase."""

    phase: str
    layer: int | None
    first_event: int


@dataclass(frozen=True)
class Unfolded:
    """A recording for the whole model: events over its own storages, each pointing at the played storage it repeats."""

    events: list[int]
    source: list[int]
    """Played storage of each storage."""
    first_of: dict[tuple[str, int], int]
    """First storage of each layer's section, by phase and layer of the whole model."""
    first_outside: dict[int, int]
    """First storage of each section outside the layers, by the section's number in the record."""
    pieces: list[UnfoldedSection]
    """Where each phase and, within it, each layer's share begins, in order."""
    tape: Tape
    section_of: list[int]
    """The section that each played storage was made in."""

    @cached_property
    def ends(self) -> frozenset[UnfoldedSection]:
        """The last piece of each phase."""
        return frozenset(one for one, following in pairwise(self.pieces) if one.phase != following.phase)

    def place(self, storage: int, layer: int | None) -> int:
        """Where the played `storage` lies in the whole model; for a layer's own storage, in that of `layer`."""
        number = self.section_of[storage]
        home = self.tape.sections[number]
        if home.layer is None:
            return self.first_outside[number] + storage - home.first_storage
        assert layer is not None
        return self.first_of[home.phase, layer] + storage - home.first_storage

    def on_card(self, card: int, events: Sequence[int]) -> list[int]:
        """Those of these events that happen on a card."""
        storages, source = self.tape.storages, self.source
        return [event for event in events if storages[source[event if event >= 0 else ~event]].card == card]


def unfold(tape: Tape, plan: FoldPlan, brief: bool = False) -> Unfolded:
    """Write the played record out for all layers.

    `brief` leaves out, in all but the first and last copy of the repeated layers, small tensors that come and go within
    one layer: nearly half of the events, and less than a small segment (2 MiB) of memory.
    """
    return _Writer(tape, plan, brief).write()


class _Writer:
    def __init__(self, tape: Tape, plan: FoldPlan, brief: bool) -> None:
        self.tape = tape
        self.plan = plan
        self.brief = brief
        self.lasting: dict[int, list[int]] = {}
        self.section_of: list[int] = []
        self.result = Unfolded([], [], {}, {}, [], tape, self.section_of)
        sections = tape.sections
        for number, section in enumerate(sections):
            end = sections[number + 1].first_storage if number + 1 < len(sections) else len(tape.storages)
            self.section_of += [number] * (end - section.first_storage)

    def write(self) -> Unfolded:
        sections, plan = self.tape.sections, self.plan
        number = 0
        while number < len(sections):
            layer = sections[number].layer
            if sections[number].phase == "over":
                break
            if plan.copies_of(layer) == 1:
                self._emit(number, None if layer is None else plan.of(layer).place(layer))
                number += 1
                continue
            descends, run = sections[number].phase.startswith("backward"), [number]
            while number + 1 < len(sections) and plan.copies_of(sections[number + 1].layer) > 1:
                number += 1
                run.append(number)
            number += 1
            assert layer is not None
            stack = plan.of(layer)
            shifts = range(0, stack.copies * stack.period, stack.period)
            for shift in reversed(shifts) if descends else shifts:
                last = shift == (0 if descends else shifts[-1])
                brief = self.brief and 0 < shift < shifts[-1]
                for index in run:
                    own = sections[index].layer
                    assert own is not None
                    self._emit(index, own + shift, last, brief)
        return self.result

    def _emit(self, number: int, layer: int | None, last: bool = True, brief: bool = False) -> None:
        """Write one section out as the model's `layer`; the last copy frees what all copies share."""
        tape, result = self.tape, self.result
        section = tape.sections[number]
        following = tape.sections[number + 1] if number + 1 < len(tape.sections) else None
        last_event = following.first_event if following else len(tape.events)
        last_storage = following.first_storage if following else len(tape.storages)
        result.pieces.append(UnfoldedSection(section.phase, layer, len(result.events)))
        base = len(result.source)
        if layer is None:
            result.first_outside[number] = base
        else:
            assert (section.phase, layer) not in result.first_of, "a layer's section is in two pieces"
            result.first_of[section.phase, layer] = base
        result.source.extend(range(section.first_storage, last_storage))
        append = result.events.append
        first = section.first_storage
        events = tape.events[section.first_event : last_event]
        for event in self._lasting(number, events) if brief else events:
            storage = event if event >= 0 else ~event
            if storage >= first and storage < last_storage:
                place = base + storage - first
                append(place if event >= 0 else ~place)
            else:
                if not last and not _same_stack(tape.sections[self.section_of[storage]].layer, layer):
                    continue
                for place in self._elsewhere(storage, section, layer):
                    append(~place)

    def _lasting(self, number: int, events: list[int]) -> list[int]:
        """The events of a section without those of small storages that come and go in it."""
        known = self.lasting.get(number)
        if known is None:
            freed = {~event for event in events if event < 0}
            made = {event for event in events if event >= 0}
            storages = self.tape.storages
            passing = {number for number in freed & made if storages[number].num_bytes <= SMALL_SIZE}
            known = self.lasting[number] = [e for e in events if (e if e >= 0 else ~e) not in passing]
        return known

    def _elsewhere(self, storage: int, here: LayerSection, layer: int | None) -> list[int]:
        """Where a storage of another section lies in the whole model, as seen from `layer`."""
        number = self.section_of[storage]
        home = self.tape.sections[number]
        plan, place = self.plan, self.result.place
        if home.layer is None:
            return [place(storage, None)]
        stack = plan.of(home.layer)
        if layer is not None and here.layer is not None and _same_stack(home.layer, layer):
            if stack.is_across(home.layer, here.layer):  # what the last layer made, for the first (T5's bias)
                return [place(storage, stack.place(home.layer))]
            return [place(storage, layer + home.layer - here.layer)]
        if stack.copies_of(home.layer) > 1:
            layers = range(home.layer, home.layer + stack.copies * stack.period, stack.period)
            return [place(storage, one) for one in layers]
        return [place(storage, stack.place(home.layer))]


def _same_stack(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a // STACK == b // STACK
