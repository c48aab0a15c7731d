"""Unfolds the record of a few simulated chunks to all chunks of a loop, before the layers are unfolded.

The backward of a loop runs its chunks from the last to the first. A chunk frees storages of its own, of its neighbours,
and of the same chunk in the forward or in its recomputation; so those of another chunk are found at the same distance
from each that it stands for, at the same place within it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vramplan.analytic.autograd.graph import LayerSection, StorageInfo
from vramplan.analytic.step_record import StepRecord
from vramplan.memory import passes


class Part(NamedTuple):
    """Events of a section, or of a chunk that stands for others."""

    events: array[int]
    """Of the first chunk."""
    copies: int = 1
    """Number of chunks that follow each other; each differs from the one before as the second from the first."""
    following: array[int] = array("i")
    """Of the second chunk, if there are several."""


def repeated(first: array[int], second: Sequence[int], copies: int) -> array[int]:
    """The events of several chunks from those of two; each differs from the one before as the second from the first.

    >>> repeated(array("i", [10, ~3]), [12, ~2], 4)
    array('i', [10, -4, 12, -3, 14, -2, 16, -1])
    """
    steps = [(b if b >= 0 else ~b) - (a if a >= 0 else ~a) for a, b in zip(first, second, strict=True)]
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    slots, events, done = array("i", [numbers[step] for step in steps]) * copies, first[:], 1
    while done < copies:
        more = events[: (copies - done) * len(first)]
        events.extend(passes.relocated(more, slots[: len(more)], [done * step for step in numbers]))
        done = len(events) // len(first) if first else copies
    return events


class WholeRecord(NamedTuple):
    """A record with all chunks."""

    events: array[int]
    sections: Sequence[LayerSection]
    """The sections, which are not divided by chunks."""
    source: array[int]
    """The recorded storage that each storage repeats."""
    place: Sequence[int]
    """Number of each recorded storage; of several chunks, in the first that is written."""
    number_of: Sequence[int]
    """Number of the section that each recorded section is a part of."""
    repeats: Sequence[tuple[int, int, int]] = ()
    """Where several chunks follow each other: number of the first event, events of each, number of chunks."""

    def end_of(self, section: int) -> LayerSection:
        """The section after the one with this number, or what would come next."""
        if section + 1 < len(self.sections):
            return self.sections[section + 1]
        return LayerSection("", None, len(self.events), len(self.source), 0)

    def parts(self, section: int) -> Iterator[Part]:
        """The events of the section with this number."""
        begin, end = self.sections[section].first_event, self.end_of(section).first_event
        for first, size, copies in self.repeats:
            if begin <= first < end:
                second, third = first + size, first + 2 * size
                yield Part(self.events[begin:first])
                yield Part(self.events[first:second], copies, self.events[second:third])
                begin = first + copies * size
        yield Part(self.events[begin:end])


def with_all_chunks(record: StepRecord) -> WholeRecord:
    """The record with the events and storages of all chunks of its loops."""
    if all(section.chunk is None for section in record.sections):
        numbers = array("i", range(len(record.storages)))
        return WholeRecord(record.events, record.sections, numbers, numbers, range(len(record.sections)))
    return _Writer(record).write()


def sections_of(record: StepRecord | WholeRecord) -> array[int]:
    """Number of the section that allocates each storage."""
    numbers = array("i")
    for number, section in enumerate(record.sections):
        numbers.extend(array("i", [number]) * (record.end_of(number).first_storage - section.first_storage))
    return numbers


class _Origin(NamedTuple):
    """Where the storages were made that a section frees."""

    run: int
    """Number of the first section of a loop's pass, or of the section itself outside of loops."""
    at: int
    """Number of the chunk; its distance if both are chunks of one layer."""
    is_distance: bool


class _Template(NamedTuple):
    """The events of a section, whose storages are numbered within the section or chunk that allocates them."""

    events: array[int]
    slots: array[int]
    origins: list[_Origin]


class _Writer:
    def __init__(self, record: StepRecord) -> None:
        self.record = record
        self.numbers = array("i", range(len(record.storages)))
        self.section_of = sections_of(record)
        self.run_of = _runs(record.sections)
        self.first_of: dict[tuple[int, int], int] = {}
        """First storage of each chunk that was written, by run and number."""
        self.whole = WholeRecord(array("i"), [], array("i"), (), ())
        self.repeats: list[tuple[int, int, int]] = []

    def write(self) -> WholeRecord:
        sections, whole = self.record.sections, self.whole
        merged: list[LayerSection] = []
        place, number_of = array("i"), array("i")
        for number, section in enumerate(sections):
            if not number or not _are_one(sections[number - 1], section):
                merged.append(
                    section._replace(first_event=len(whole.events), first_storage=len(whole.source), chunk=None)
                )
            first = len(whole.source)
            place.extend(range(first, first + self.record.end_of(number).first_storage - section.first_storage))
            number_of.append(len(merged) - 1)
            self._emit(number)
        return whole._replace(sections=merged, place=place, number_of=number_of, repeats=self.repeats)

    def _emit(self, number: int) -> None:
        """Write a section, for each chunk that it stands for in the order in which they run."""
        run, whole, chunks = self.run_of[number], self.whole, self._order(number)
        template = self._template(number)
        storages = self.numbers[self.record.sections[number].first_storage : self.record.end_of(number).first_storage]
        for count, at in enumerate(chunks):
            self.first_of[run, at] = len(whole.source) + count * len(storages)
        whole.source.extend(storages * len(chunks))

        def events(at: int) -> array[int]:
            bases = [self.first_of[one.run, one.at + at * one.is_distance] for one in template.origins]
            return passes.relocated(template.events, template.slots, [self.first_of[run, at], *bases])

        if len(chunks) == 1:
            whole.events.extend(events(chunks[0]))
            return
        self._check(number, template)
        self.repeats.append((len(whole.events), len(template.events), len(chunks)))
        whole.events.extend(repeated(events(chunks[0]), events(chunks[1]), len(chunks)))

    def _check(self, number: int, template: _Template) -> None:
        """The chunk after one that stands for several does the same, and its neighbours allocate the same.

        So it may free storages of these, which are as far from each other as its own.
        """
        storages = self._storages(number)
        assert storages == self._storages(number - 1) == self._storages(number + 1), "neighbours are not equal"
        after = number - 1 if self._descends(number) else number + 1
        assert template == self._template(after), "chunks are not equal"
        assert all(one.is_distance and -1 <= one.at <= 1 for one in template.origins), (
            "chunks free more than neighbours"
        )

    def _storages(self, number: int) -> Sequence[StorageInfo]:
        first, end = self.record.sections[number].first_storage, self.record.end_of(number).first_storage
        return self.record.storages[first:end]

    def _descends(self, number: int) -> bool:
        """Whether a chunk runs after those behind it, in a backward."""
        chunk, before = self.record.sections[number].chunk, self.record.sections[number - 1].chunk
        return chunk is not None and before is not None and before.first > chunk.first

    def _order(self, number: int) -> Sequence[int]:
        """The numbers of the chunks that a section stands for."""
        chunk = self.record.sections[number].chunk
        if chunk is None:
            return (0,)
        chunks = range(chunk.first, chunk.last + 1)
        return chunks[::-1] if self._descends(number) else chunks

    def _template(self, number: int) -> _Template:
        section, following = self.record.sections[number], self.record.end_of(number)
        events, slots, origins = array("i"), array("i"), list[_Origin]()
        slots_of: dict[int, range] = {number: range(1)}
        for event in self.record.events[section.first_event : following.first_event]:
            origin = self.section_of[event if event >= 0 else ~event]
            if origin not in slots_of:
                begin = 1 + len(origins)
                origins += self._origins(origin, section)
                slots_of[origin] = range(begin, 1 + len(origins))
            first = self.record.sections[origin].first_storage
            for slot in slots_of[origin]:
                events.append(event - first if event >= 0 else event + first)
                slots.append(slot)
        return _Template(events, slots, origins)

    def _origins(self, number: int, user: LayerSection) -> list[_Origin]:
        """Where the storages of section `number` are, which another section frees."""
        section, run = self.record.sections[number], self.run_of[number]
        if section.chunk is not None and user.chunk is not None and section.layer == user.layer:
            return [_Origin(run, section.chunk.distance_from(user.chunk), True)]
        assert user.chunk is None or user.chunk.copies == 1, "several chunks free one storage"
        return [_Origin(run, at, False) for at in self._order(number)]


def _runs(sections: Sequence[LayerSection]) -> list[int]:
    """For each section the number of the first of its loop's pass; its own outside of loops."""
    runs: list[int] = []
    for number, section in enumerate(sections):
        follows = number > 0 and section.chunk is not None and sections[number - 1].chunk is not None
        runs.append(runs[-1] if follows else number)
    return runs


def _are_one(section: LayerSection, following: LayerSection) -> bool:
    """Whether two sections are of one layer in one phase, divided by chunks alone."""
    if section.chunk is None and following.chunk is None:
        return False
    return (section.phase, section.layer, section.run) == (following.phase, following.layer, following.run)
