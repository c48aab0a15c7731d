"""Unfolds the record of a few simulated layers to the whole model.

Layers come in periods (one layer for Llama, six for Gemma 3). The tape simulates the first layers, one period that
stands for all that are left out, and the last layers; of towers, whose layers know their neighbours alone, one layer of
each kind between neighbours of the same kinds. A storage is identified by its section (phase and layer) and its
place in the section, so the events of a simulated layer can be written for every layer that it stands for: a
reference to the layer itself, the one before or the one after holds for each of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from vramplan.analytic.autograd.graph import LayerSection
from vramplan.analytic.chunk_folding import WholeRecord, repeated, sections_of, with_all_chunks
from vramplan.analytic.step_record import StepRecord
from vramplan.dataclass import dataclass
from vramplan.memory import passes
from vramplan.memory.allocator import SMALL_SIZE

HEAD, TAIL = 2, 1
"""Layers simulated before and after those that repeat: the first may differ, the second is an ordinary neighbour."""
STACK = 1 << 16
"""Layers of the n-th stack of a model (vision tower, text) are numbered from n times this."""


@dataclass(frozen=True)
class Fold:
    """The layers of one stack that are simulated, and those that they stand for; numbers include the stack's base."""

    simulated: tuple[Hashable, ...]
    """Kinds of the simulated layers."""
    stands_for: tuple[int, ...]
    """For each layer of the whole model the index of the simulated layer that stands for it."""
    base: int = 0
    """Number of the stack's first layer."""

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        places: list[list[int]] = [[] for _ in self.simulated]
        for layer, index in enumerate(self.stands_for, self.base):
            places[index].append(layer)
        return tuple(map(tuple, places))

    @property
    def left_out(self) -> int:
        """Number of layers that are not simulated."""
        return len(self.stands_for) - len(self.simulated)

    def layers(self) -> list[int]:
        """For each layer of the whole model the simulated layer that stands for it."""
        return [self.base + index for index in self.stands_for]

    def places(self, layer: int) -> tuple[int, ...]:
        """The layers of the whole model that the simulated `layer` stands for."""
        return self._places[layer - self.base]

    def copies_of(self, layer: int) -> int:
        """How many layers of the model the simulated `layer` stands for."""
        return len(self.places(layer))

    def is_across(self, layer: int, other_layer: int) -> bool:
        """Whether two simulated layers stand for themselves alone, and some between them are left out."""
        (place, *more), (other, *others) = self.places(layer), self.places(other_layer)
        return not more and not others and place - other != layer - other_layer

    def place(self, layer: int) -> int:
        """The last layer of the whole model that the simulated `layer` stands for, or the only one."""
        return self.places(layer)[-1]


def fold(
    kinds: Sequence[Hashable], stack: int = 0, head: int = HEAD, tail: int = TAIL, alone: Collection[int] | None = None
) -> Fold:
    """The shortest fold of layers of these kinds; `head` first and `tail` last layers are simulated one by one.

    So are leading layers of a kind that does not come back, such as the dense ones of some MoE models. Layers come in
    periods, as of six layers in Gemma 3. Where only the layers with the numbers `alone` share tensors with layers
    beyond their neighbours, one is simulated for all others of the same kind between neighbours of the same kinds.
    """
    count, lead = len(kinds), leading(kinds)
    head += lead
    stands_for = list(range(count))
    for period in range(1, (count - head - tail) // 2 + 1):
        if all(kinds[i] == kinds[i + period] for i in range(lead, count - period)):
            left_out = (count - head - tail - period) // period * period
            repeated = [head + number % period for number in range(left_out + period)]
            stands_for = [*range(head), *repeated, *range(head + period, count - left_out)]
            break
    num_simulated = len(set(stands_for))
    if alone is not None:
        contexts = _in_context(kinds, {*range(head), *range(count - tail, count), *alone})
        simulated = _without_repetitions(contexts)
        if len(simulated) < num_simulated:
            return Fold(tuple(kinds[layer] for layer in simulated), _nearest(contexts, simulated), stack * STACK)
    return Fold(tuple(kinds[:num_simulated]), tuple(stands_for), stack * STACK)


def whole(kinds: Sequence[Hashable], stack: int = 0) -> Fold:
    """All layers of these kinds, each simulated by itself."""
    return Fold(tuple(kinds), tuple(range(len(kinds))), stack * STACK)


def _in_context(kinds: Sequence[Hashable], alone: Collection[int]) -> tuple[Hashable, ...]:
    """Each layer's kind with those of its neighbours, and how many before it are like no other; of these, their number.

    No layer stands for one beyond a layer that is like no other: something else may come between them.
    """
    before = accumulate(at in alone for at in range(len(kinds)))
    return tuple(at if at in alone else (count, tuple(kinds[at - 1 : at + 2])) for at, count in enumerate(before))


@lru_cache(maxsize=64)
def _without_repetitions(contexts: tuple[Hashable, ...]) -> tuple[int, ...]:
    """Numbers of layers that have all contexts, each behind one that its context names."""
    kept = list(range(len(contexts)))
    while True:
        longest = range(0)
        for end in range(len(kept) - 1, 0, -1):
            for begin in range(end - len(longest)):
                if contexts[kept[begin]] == contexts[kept[end]]:
                    rest = {contexts[layer] for layer in (*kept[:begin], *kept[end:])}
                    if all(contexts[layer] in rest for layer in kept[begin:end]):
                        longest = range(begin, end)
                        break
        if not longest:
            return tuple(kept)
        del kept[longest.start : longest.stop]


def _nearest(contexts: Sequence[Hashable], simulated: Sequence[int]) -> tuple[int, ...]:
    """For each layer the index of the simulated one: its own, or the first with its context."""
    first = {contexts[layer]: index for index, layer in reversed([*enumerate(simulated)])}
    own = {layer: index for index, layer in enumerate(simulated)}
    return tuple(own.get(layer, first[context]) for layer, context in enumerate(contexts))


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
    whole: WholeRecord
    """The simulated layers with all chunks of their loops."""
    made_in: array[int]
    """Number of its section that allocates each of its storages."""

    @cached_property
    def ends(self) -> frozenset[UnfoldedSection]:
        """The last section of each phase."""
        return frozenset(section for section, following in pairwise(self.pieces) if section.phase != following.phase)

    def place(self, storage: int, layer: int | None) -> int:
        """Number in the whole model of the simulated `storage`; if a layer allocates it, of the one in `layer`."""
        place = self.whole.place[storage]
        number = self.made_in[place]
        made_in = self.whole.sections[number]
        if made_in.layer is None:
            return self.first_outside[number] + place - made_in.first_storage
        assert layer is not None
        return self.first_of[made_in.phase, made_in.run, layer] + place - made_in.first_storage

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


ACROSS = -1
"""Stands for the copy of a section if a slot is that of one storage of another layer."""


class _Template(NamedTuple):
    """The events of a section, for any layer: storages are numbered within the section that allocates them."""

    events: array[int]
    slots: array[int]
    """The slot of each event's storage: 0 for the section itself."""
    origins: list[tuple[int, int]]
    """For each further slot the section that allocates its storages and the number of its copy, or one storage of
    another layer of the stack and ACROSS."""


class _Writer:
    def __init__(self, record: StepRecord, plan: FoldPlan, sizes: Sequence[int], brief: bool) -> None:
        self.record = whole = with_all_chunks(record)
        self.plan = plan
        self.sizes = sizes
        self.brief = brief
        self.templates: dict[tuple[int, bool, bool], _Template] = {}
        self.freed: dict[tuple[int, int], list[int]] = {}
        self.section_of = sections_of(whole)
        section_of = self.section_of if whole.place is whole.source else sections_of(record)
        self.result = Unfolded(array("i"), array("i"), {}, {}, [], record, section_of, whole, self.section_of)
        self.number_of = {(one.phase, one.run, one.layer): number for number, one in enumerate(whole.sections)}
        self.passing = self._passing(record, section_of) if brief else frozenset[int]()

    def write(self) -> Unfolded:
        sections, plan = self.record.sections, self.plan
        number = 0
        while number < len(sections):
            first = sections[number]
            if first.phase == "over":
                break
            run = [number]
            while first.layer is not None and number + 1 < len(sections) and _are_one_run(first, sections[number + 1]):
                number += 1
                run.append(number)
            number += 1
            self._emit_run(run, first)
        return self.result

    def _emit_run(self, run: Sequence[int], first: LayerSection) -> None:
        """Write sections that follow each other, each for all layers that it stands for, in the order of the layers."""
        if first.layer is None:
            return self._emit(run[0], None)
        stack = self.plan.of(first.layer)
        descends = first.phase.startswith("backward") and not first.ascends
        places = []
        for number in run:
            simulated = self.record.sections[number].layer
            assert simulated is not None
            places += [(layer, number, stack.places(simulated)) for layer in stack.places(simulated)]
        for layer, number, copies in sorted(places, key=lambda one: one[0], reverse=descends):
            last = layer == (copies[0] if descends else copies[-1])
            self._emit(number, layer, last, self.brief and copies[0] < layer < copies[-1])

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
        result.source.extend(self.record.source[section.first_storage : following.first_storage])
        template = self.templates.get(key)
        if template is None:
            template = self.templates[key] = self._template(*key)
        bases = [base, *(self._base(origin, copy, number, layer) for origin, copy in template.origins)]
        result.events.extend(passes.relocated(template.events, template.slots, bases))

    def _template(self, number: int, last: bool, brief: bool) -> _Template:
        """The events of a section; all but the last copy leave storages of other stacks, and outside, to the last."""
        section, following = self.record.sections[number], self.record.end_of(number)
        first, end = section.first_storage, following.first_storage
        source, passing = self.record.source, self.passing if brief else ()
        origins: list[tuple[int, int]] = []
        slot_of: dict[int, Sequence[int]] = {}

        def located(events: Sequence[int]) -> tuple[array[int], array[int]]:
            """The events with numbers within the sections that allocate their storages, and the slot of each."""
            within, slots = array("i"), array("i")
            for event in events:
                storage = event if event >= 0 else ~event
                if passing and source[storage] in passing:
                    continue
                if first <= storage < end:
                    within.append(event - first if event >= 0 else event + first)
                    slots.append(0)
                    continue
                origin = self.section_of[storage]
                made_in = self.record.sections[origin]
                same = _same_stack(made_in.layer, section.layer)
                is_across = same and made_in.layer != section.layer
                key, start = (~storage, storage) if is_across else (origin, made_in.first_storage)
                if key not in slot_of:
                    num_copies = 1 if same else self.plan.copies_of(made_in.layer) if last else 0
                    origins.extend([(storage, ACROSS)] if is_across else [(origin, copy) for copy in range(num_copies)])
                    slot_of[key] = range(1 + len(origins) - num_copies, 1 + len(origins))
                for slot in slot_of[key]:
                    within.append(event - start if event >= 0 else event + start)
                    slots.append(slot)
            return within, slots

        all_events, all_slots = array("i"), array("i")
        for part in self.record.parts(number):
            events, slots = located(part.events)
            all_events.extend(events if part.copies == 1 else repeated(events, located(part.following)[0], part.copies))
            all_slots.extend(slots * part.copies)
        return _Template(all_events, all_slots, origins)

    def _passing(self, record: StepRecord, section_of: Sequence[int]) -> frozenset[int]:
        """The small storages of a record that are freed in the section that allocates them."""
        part_of = self.record.number_of
        return frozenset(
            ~event
            for number, section in enumerate(record.sections)
            for event in record.events[section.first_event : record.end_of(number).first_event]
            if event < 0 and part_of[section_of[~event]] == part_of[number] and self.sizes[~event] <= SMALL_SIZE
        )

    def _base(self, origin: int, copy: int, number: int, layer: int | None) -> int:
        """First storage in the whole model of another section, of whose storages section `number` frees some."""
        if copy == ACROSS:
            assert layer is not None
            return self._of_neighbour(origin, number, layer)
        made_in, here, first_of = self.record.sections[origin], self.record.sections[number], self.result.first_of
        if made_in.layer is None:
            return self.result.first_outside[origin]
        if _same_stack(made_in.layer, here.layer):
            assert layer is not None
            return first_of[made_in.phase, made_in.run, layer]
        return first_of[made_in.phase, made_in.run, self.plan.of(made_in.layer).places(made_in.layer)[copy]]

    def _of_neighbour(self, storage: int, number: int, layer: int) -> int:
        """Number in the whole model of a storage of another layer, which section `number` frees as `layer`.

        If the whole model's layer there is simulated by another one than the record's, its section may have other
        storages before it (the last layer's backward begins the sum of the gradients of an encoder's output): then it
        is the storage that comes at the same point among those freed from there.
        """
        sections, origin = self.record.sections, self.section_of[storage]
        made_in, here = sections[origin], sections[number]
        assert made_in.layer is not None
        assert here.layer is not None
        stack, distance = self.plan.of(made_in.layer), made_in.layer - here.layer
        place = layer + distance
        if stack.is_across(made_in.layer, here.layer):  # made across the period (T5's bias)
            place = stack.place(made_in.layer)
        simulated = stack.layers()[place - stack.base]
        if simulated != made_in.layer:
            other = self.number_of[made_in.phase, made_in.run, simulated]
            nth = self._freed(number, origin).index(storage)
            storage = self._freed(self.number_of[here.phase, here.run, simulated - distance], other)[nth]
            made_in = sections[other]
        return self.result.first_of[made_in.phase, made_in.run, place] + storage - made_in.first_storage

    def _freed(self, number: int, origin: int) -> list[int]:
        """The storages made in section `origin` that section `number` frees, in order."""
        key = number, origin
        if key not in self.freed:
            first, end = self.record.sections[number].first_event, self.record.end_of(number).first_event
            freed = (~event for event in self.record.events[first:end] if event < 0)
            self.freed[key] = [storage for storage in freed if self.section_of[storage] == origin]
        return self.freed[key]


def _are_one_run(first: LayerSection, other: LayerSection) -> bool:
    """Whether two sections are of layers of one stack that one pass over it visits."""
    return (first.phase, first.run, first.ascends) == (other.phase, other.run, other.ascends) and _same_stack(
        first.layer, other.layer
    )


def _same_stack(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a // STACK == b // STACK
