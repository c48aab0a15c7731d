"""Builds a timeline: allocations and frees in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramplan.memory.timeline import Mark, Storage, Timeline


class Recorder:
    """Collects events; storages are numbered in order of allocation."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []

    def enter(self, phase: str) -> None:
        """Begin `phase`: all that follows belongs to it."""
        if not self.marks or self.marks[-1].phase != phase:
            self.marks.append(Mark(phase, len(self.events)))

    def allocate(self, storage: Storage) -> int:
        """Allocate and return the number to free it by."""
        number = len(self.storages)
        self.storages.append(storage)
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        """Free one storage."""
        self.events.append(~number)

    def free_all(self, numbers: Iterable[int]) -> None:
        """Free several, in order."""
        self.events.extend(~number for number in numbers)

    def live_bytes(self) -> int:
        """Bytes allocated now."""
        sizes = [storage.num_bytes for storage in self.storages]
        return sum(sizes[event] if event >= 0 else -sizes[~event] for event in self.events)

    def splice(self, storages: Sequence[Storage]) -> int:
        """Append the storages of another record; returns the number that its storage 0 has here."""
        self.storages.extend(storages)
        return len(self.storages) - len(storages)

    def extend(self, events: Sequence[int], offset: int) -> None:
        """Append events whose storages are numbered from `offset`."""
        self.events.extend([event + offset if event >= 0 else event - offset for event in events])

    def timeline(self) -> Timeline:
        """The timeline of all events so far."""
        return Timeline(self.storages, self.events, self.marks)
