"""Unfolds the record of a few simulated layers to the whole model.

Layers come in periods (one layer for Llama, six for Gemma 3). The tape simulates the first layers, one period that
stands for all that are left out, and the last layers. A storage is identified by its section (phase and layer) and its
place in the section, so the events of the repeated period can be written for every layer that it stands for: a
reference to the layer itself, the one before or the one after holds for each of them.
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
"""Layers simulated before and after the repeated period: the first may differ, the second is an ordinary neighbour."""
STACK = 1 << 16
"""Layers of the n-th stack of a model (vision tower, text) are numbered from n times this."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The layers of one stack that are simulated, and the period that is repeated; numbers include the stack's base."""

    simulated: tuple[Hashable, ...]
    first: int
    """First layer of the repeated period."""
    period: int
    copies: int
    """Number of times that the whole model has the period."""
    base: int = 0
    """Number of the stack's first layer."""

    @property
    def left_out(self) -> int:
        """Number of layers that are not simulated."""
        return (self.copies - 1) * self.period

    def layers(self) -> list[int]:
        """For each layer of the whole model the simulated layer that stands for it."""
        end = self.first + self.period
        repeated = list(range(self.first, end)) * self.copies
        return [*range(self.base, self.first), *repeated, *range(end, self.base + len(self.simulated))]

    def copies_of(self, layer: int) -> int:
        """How many layers of the model the simulated `layer` stands for."""
        return self.copies if self.first <= layer < self.first + self.period else 1

    def is_across(self, layer: int, other_layer: int) -> bool:
        """Whether the repeated period is between two simulated layers."""
        return min(layer, other_layer) < self.first and max(layer, other_layer) >= self.first + self.period

    def place(self, layer: int) -> int:
        """The last layer of the whole model that the simulated `layer` stands for, or the only one."""
        return layer + self.left_out if layer >= self.first else layer


def fold(kinds: Sequence[Hashable], stack: int = 0, head: int = HEAD, tail: int = TAIL) -> Fold:
    """The shortest fold of layers of these kinds; `head` first and `tail` last layers are simulated one by one.

    So are leading layers of a kind that does not come back, such as the dense ones of some MoE models.
    """
    count, base, lead = len(kinds), stack * STACK, leading(kinds)
    head += lead
    for period in range(1, (count - head - tail) // 2 + 1):
        if all(kinds[i] == kinds[i + period] for i in range(lead, count - period)):
            left_out = (count - head - tail - period) // period
            return Fold(tuple(kinds[: count - left_out * period]), base + head, period, left_out + 1, base)
    return Fold(tuple(kinds), base + count, 0, 1, base)


def leading(kinds: Sequence[Hashable]) -> int:
    """Number of leading layers whose kind no later layer has; 0 if all layers are alike."""
    alike = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
    return alike if alike < len(kinds) and kinds[0] not in kinds[alike:] else 0


class FoldPlan(NamedTuple):
    """The folds of a model's stacks, in the order that their weights are loaded."""

    stacks: tuple[Fold, ...]

    def of(self, layer: int) -> Fold:
        """The stack that a layer belongs to."""
        return next(stack for stack in self.stacks if stack.base // STACK == layer // STACK)

    def copies_of(self, layer: int | None) -> int:
        """How many layers of the model the simulated `layer` stands for."""
        return 1 if layer is None else self.of(layer).copies_of(layer)


class UnfoldedSection(NamedTuple):
    """A part of the unfolded record: one layer in one phase."""

    phase: str
    layer: int | None
    first_event: int


@dataclass(frozen=True)
class Unfolded:
    """The record of the whole model: events over its storages, each with the simulated storage that it repeats."""

    events: list[int]
    source: list[int]
    """Simulated storage of each storage."""
    first_of: dict[tuple[str, int], int]
    """First storage of each layer's section, by phase and layer of the whole model."""
    first_outside: dict[int, int]
    """First storage of each section outside the layers, by the section's number on the tape."""
    pieces: list[UnfoldedSection]
    """The sections in order, each with its first event."""
    tape: Tape
    section_of: list[int]
    """Number of the section that allocates each simulated storage."""

    @cached_property
    def ends(self) -> frozenset[UnfoldedSection]:
        """The last section of each phase."""
        return frozenset(section for section, following in pairwise(self.pieces) if section.phase != following.phase)

    def place(self, storage: int, layer: int | None) -> int:
        """Number in the whole model of the simulated `storage`; if a layer allocates it, of the one in `layer`."""
        number = self.section_of[storage]
        made_in = self.tape.sections[number]
        if made_in.layer is None:
            return self.first_outside[number] + storage - made_in.first_storage
        assert layer is not None
        return self.first_of[made_in.phase, layer] + storage - made_in.first_storage

    def on_card(self, card: int, events: Sequence[int]) -> list[int]:
        """The events whose storages are on the GPU with index `card`."""
        storages, source = self.tape.storages, self.source
        return [event for event in events if storages[source[event if event >= 0 else ~event]].card == card]


def unfold(tape: Tape, plan: FoldPlan, brief: bool = False) -> Unfolded:
    """The record of all layers from that of the simulated ones.

    `brief` leaves out small tensors that are freed within their layer, in all but the first and last copy of the
    repeated layers: nearly half of the events, and less than a small segment (2 MiB) of memory.
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
                    simulated = sections[index].layer
                    assert simulated is not None
                    self._emit(index, simulated + shift, last, brief)
        return self.result

    def _emit(self, number: int, layer: int | None, last: bool = True, brief: bool = False) -> None:
        """Write one section as the model's `layer`; the last copy frees storages that all copies share."""
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
        """The events of a section without those of small storages that are freed in it."""
        lasting = self.lasting.get(number)
        if lasting is None:
            freed = {~event for event in events if event < 0}
            allocated = {event for event in events if event >= 0}
            storages = self.tape.storages
            passing = {number for number in freed & allocated if storages[number].num_bytes <= SMALL_SIZE}
            lasting = self.lasting[number] = [e for e in events if (e if e >= 0 else ~e) not in passing]
        return lasting

    def _elsewhere(self, storage: int, here: LayerSection, layer: int | None) -> list[int]:
        """Numbers in the whole model of a storage of another section that `layer` frees."""
        number = self.section_of[storage]
        made_in = self.tape.sections[number]
        plan, place = self.plan, self.result.place
        if made_in.layer is None:
            return [place(storage, None)]
        stack = plan.of(made_in.layer)
        if layer is not None and here.layer is not None and _same_stack(made_in.layer, layer):
            if stack.is_across(made_in.layer, here.layer):  # made across the period (T5's bias)
                return [place(storage, stack.place(made_in.layer))]
            return [place(storage, layer + made_in.layer - here.layer)]
        if stack.copies_of(made_in.layer) > 1:
            layers = range(made_in.layer, made_in.layer + stack.copies * stack.period, stack.period)
            return [place(storage, layer) for layer in layers]
        return [place(storage, stack.place(made_in.layer))]


def _same_stack(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a // STACK == b // STACK
