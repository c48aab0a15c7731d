"""Builds a timeline: allocations and frees in order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from vramplan.memory import passes
from vramplan.memory.timeline import EMPTY_CACHE, Kinds, Mark, Storage, Timeline

FEW = 16
"""Events that are sooner numbered one by one than by a pass."""


class Recorder:
    """Collects events; storages are numbered in order of allocation."""

    def __init__(self) -> None:
        self.kinds: list[Storage] = []
        self.kind_of = array("i")
        """The number of each storage's kind."""
        self.events = array("i")
        self.marks: list[Mark] = []
        self._numbers: dict[int, int] = {}
        """Number of each kind, by the id of its object."""

    def enter(self, phase: str, first_event: int | None = None) -> None:
        """Begin `phase`: all that follows, or all from an event on, belongs to it."""
        if not self.marks or self.marks[-1].phase != phase:
            self.marks.append(Mark(phase, len(self.events) if first_event is None else first_event))

    def allocate(self, storage: Storage) -> int:
        """Allocate and return the number to free it by."""
        kind = self._numbers.get(id(storage))
        if kind is None:
            kind = self._numbers[id(storage)] = len(self.kinds)
            self.kinds.append(storage)
        number = len(self.kind_of)
        self.kind_of.append(kind)
        self.events.append(number)
        return number

    def allocate_after(self, earlier: int, storage: Storage, begin: int = 0) -> None:
        """Allocate directly after an earlier storage, or at the end if that is never allocated.

        `begin` is the number of an event before that storage's, from which on it is looked for.
        """
        self.allocate(storage)
        with suppress(ValueError):
            index = self.events.index(earlier, begin) + 1
            self.events.insert(index, self.events.pop())
            self.marks = [
                replace(mark, first_event=mark.first_event + 1) if mark.first_event >= index else mark
                for mark in self.marks
            ]

    def allocate_all(self, storages: Sequence[Storage]) -> range:
        """Allocate several in order and return their numbers."""
        ids = list(map(id, storages))
        for storage in dict(zip(ids, storages, strict=True)).values():
            if id(storage) not in self._numbers:
                self._numbers[id(storage)] = len(self.kinds)
                self.kinds.append(storage)
        numbers = range(len(self.kind_of), len(self.kind_of) + len(ids))
        self.kind_of.extend(array("i", [self._numbers[key] for key in ids]))
        self.events.extend(array("i", numbers))
        return numbers

    def kind(self, storage: Storage) -> int:
        """Number of this object's kind; appended if it was never allocated."""
        number = self._numbers.get(id(storage))
        return self.add_kinds([storage]) if number is None else number

    def has(self, storage: Storage) -> bool:
        """Whether this object was allocated before."""
        return id(storage) in self._numbers

    def free(self, number: int) -> None:
        """Free one storage."""
        self.events.append(~number)

    def free_all(self, numbers: Iterable[int]) -> None:
        """Free several, in order."""
        self.events.extend([~number for number in numbers])

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.free(self.allocate(EMPTY_CACHE))

    def live_bytes(self) -> int:
        """Bytes allocated now, as requested."""
        sizes = [kind.num_bytes for kind in self.kinds]
        live = passes.live_bytes(self.events, self.kind_of, sizes)
        return live[-1] if live else 0

    def add_kinds(self, kinds: Iterable[Storage]) -> int:
        """Append kinds without allocating; returns the number of the first."""
        first = len(self.kinds)
        self.kinds.extend(kinds)
        return first

    def splice(self, kind_of: array[int]) -> int:
        """Append storages of these kinds without allocating them; returns the number that the first has here."""
        first = len(self.kind_of)
        self.kind_of.extend(kind_of)
        return first

    def extend(self, events: Sequence[int], offset: int) -> None:
        """Append events whose storages are numbered from `offset`."""
        if len(events) < FEW:
            self.events.extend([event + offset if event >= 0 else event - offset for event in events])
            return
        self.events.extend(passes.shifted(events if isinstance(events, array) else array("i", events), offset))

    def timeline(self) -> Timeline:
        """The timeline of all events so far."""
        return Timeline(Kinds(self.kinds), self.kind_of, self.events, self.marks)
