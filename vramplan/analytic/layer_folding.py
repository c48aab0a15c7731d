"""Unfolds the record of a few simulated layers to the whole model.

Layers come in periods (one layer for Llama, six for Gemma 3). The tape simulates the first layers, one period that
stands for all that are left out, and the last layers. A storage is identified by its section (phase and layer) and its
place in the section, so the events of the repeated period can be written for every layer that it stands for: a
reference to the layer itself, the one before or the one after holds for each of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from vramplan.analytic.autograd.graph import LayerSection
from vramplan.analytic.step_record import StepRecord
from vramplan.dataclass import dataclass
from vramplan.memory import passes
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
    pattern: tuple[int, bool, bool]
    """Sections of the same pattern have the same events, but for the numbers of their storages."""


@dataclass(frozen=True)
class Unfolded:
    """The record of the whole model: events over its storages, each with the simulated storage that it repeats."""

    events: array[int]
    source: array[int]
    """Simulated storage of each storage."""
    first_of: dict[tuple[str, int, int], int]
    """First storage of each layer's section, by phase, forward and layer of the whole model."""
    first_outside: dict[int, int]
    """First storage of each section outside the layers, by the section's number on the tape."""
    pieces: list[UnfoldedSection]
    """The sections in order, each with its first event."""
    record: StepRecord
    section_of: array[int]
    """Number of the section that allocates each simulated storage."""

    @cached_property
    def ends(self) -> frozenset[UnfoldedSection]:
        """The last section of each phase."""
        return frozenset(section for section, following in pairwise(self.pieces) if section.phase != following.phase)

    def place(self, storage: int, layer: int | None) -> int:
        """Number in the whole model of the simulated `storage`; if a layer allocates it, of the one in `layer`."""
        number = self.section_of[storage]
        made_in = self.record.sections[number]
        if made_in.layer is None:
            return self.first_outside[number] + storage - made_in.first_storage
        assert layer is not None
        return self.first_of[made_in.phase, made_in.run, layer] + storage - made_in.first_storage

    def on_card(self, card: int, events: Sequence[int]) -> array[int]:
        """The events whose storages are on the GPU with index `card`."""
        return passes.selected(events, self._on(card))

    def _on(self, card: int) -> bytes:
        """Whether each storage is on the GPU with index `card`."""
        flags = self._cards.get(card)
        if flags is None:
            simulated = [info.card == card for info in self.record.storages]
            flags = self._cards[card] = bytes([simulated[source] for source in self.source])
        return flags

    @cached_property
    def _cards(self) -> dict[int, bytes]:
        return {}


def unfold(record: StepRecord, plan: FoldPlan, sizes: Sequence[int], brief: bool = False) -> Unfolded:
    """The record of all layers from that of the simulated ones, whose storages have these sizes in bytes.

    `brief` leaves out small tensors that are freed within their layer, in all but the first and last copy of the
    repeated layers: nearly half of the events, and less than a small segment (2 MiB) of memory.
    """
    return _Writer(record, plan, sizes, brief).write()


class _Template(NamedTuple):
    """The events of a section, for any layer: storages are numbered within the section that allocates them."""

    events: array[int]
    slots: array[int]
    """The slot of each event's storage: 0 for the section itself."""
    origins: list[tuple[int, int]]
    """For each further slot the section that allocates its storages, and the number of its copy."""


class _Writer:
    def __init__(self, record: StepRecord, plan: FoldPlan, sizes: Sequence[int], brief: bool) -> None:
        self.record = record
        self.plan = plan
        self.sizes = sizes
        self.brief = brief
        self.templates: dict[tuple[int, bool, bool], _Template] = {}
        self.identity = array("i", range(len(record.storages)))
        self.section_of = array("i")
        self.result = Unfolded(array("i"), array("i"), {}, {}, [], record, self.section_of)
        for number, section in enumerate(record.sections):
            count = record.end_of(number).first_storage - section.first_storage
            self.section_of.extend(array("i", [number]) * count)

    def write(self) -> Unfolded:
        sections, plan = self.record.sections, self.plan
        number = 0
        while number < len(sections):
            layer = sections[number].layer
            if sections[number].phase == "over":
                break
            if plan.copies_of(layer) == 1:
                self._emit(number, None if layer is None else plan.of(layer).place(layer))
                number += 1
                continue
            first = sections[number]
            descends, run = first.phase.startswith("backward") and not first.ascends, [number]
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
        result = self.result
        section, following = self.record.sections[number], self.record.end_of(number)
        key = (number, last, brief)
        result.pieces.append(UnfoldedSection(section.phase, layer, len(result.events), key))
        base = len(result.source)
        if layer is None:
            result.first_outside[number] = base
        else:
            assert (section.phase, section.run, layer) not in result.first_of, "a layer's section is in two pieces"
            result.first_of[section.phase, section.run, layer] = base
        result.source.extend(self.identity[section.first_storage : following.first_storage])
        template = self.templates.get(key)
        if template is None:
            template = self.templates[key] = self._template(*key)
        bases = [base, *(self._base(origin, copy, section, layer) for origin, copy in template.origins)]
        result.events.extend(passes.relocated(template.events, template.slots, bases))

    def _template(self, number: int, last: bool, brief: bool) -> _Template:
        """The events of a section; all but the last copy leave storages of other stacks, and outside, to the last."""
        section, following = self.record.sections[number], self.record.end_of(number)
        all_events = self.record.events[section.first_event : following.first_event]
        events = self._lasting(all_events) if brief else all_events
        first, end = section.first_storage, following.first_storage
        within: list[int] = []
        slots: list[int] = []
        origins: list[tuple[int, int]] = []
        slot_of: dict[int, Sequence[int]] = {}
        for event in events:
            storage = event if event >= 0 else ~event
            if first <= storage < end:
                within.append(event - first if event >= 0 else event + first)
                slots.append(0)
                continue
            origin = self.section_of[storage]
            made_in = self.record.sections[origin]
            if origin not in slot_of:
                same = _same_stack(made_in.layer, section.layer)
                num_copies = 1 if same else self.plan.copies_of(made_in.layer) if last else 0
                origins += [(origin, copy) for copy in range(num_copies)]
                slot_of[origin] = range(1 + len(origins) - num_copies, 1 + len(origins))
            for slot in slot_of[origin]:
                within.append(event - made_in.first_storage if event >= 0 else event + made_in.first_storage)
                slots.append(slot)
        return _Template(array("i", within), array("i", slots), origins)

    def _lasting(self, events: Sequence[int]) -> list[int]:
        """The events of a section without those of small storages that are freed in it."""
        freed = {~event for event in events if event < 0}
        allocated = {event for event in events if event >= 0}
        passing = {number for number in freed & allocated if self.sizes[number] <= SMALL_SIZE}
        return [event for event in events if (event if event >= 0 else ~event) not in passing]

    def _base(self, origin: int, copy: int, here: LayerSection, layer: int | None) -> int:
        """First storage in the whole model of another section, of whose storages `layer` frees some."""
        made_in, first_of = self.record.sections[origin], self.result.first_of
        if made_in.layer is None:
            return self.result.first_outside[origin]
        stack = self.plan.of(made_in.layer)
        if layer is not None and here.layer is not None and _same_stack(made_in.layer, layer):
            if stack.is_across(made_in.layer, here.layer):  # made across the period (T5's bias)
                return first_of[made_in.phase, made_in.run, stack.place(made_in.layer)]
            return first_of[made_in.phase, made_in.run, layer + made_in.layer - here.layer]
        if stack.copies_of(made_in.layer) > 1:
            return first_of[made_in.phase, made_in.run, made_in.layer + copy * stack.period]
        return first_of[made_in.phase, made_in.run, stack.place(made_in.layer)]


def _same_stack(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a // STACK == b // STACK
