"""Writing a timeline: allocations and frees, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramplan.timeline import Mark, Storage, Timeline


class Recorder:
    """Collects events; storages are numbered as they come."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []

    def enter(self, phase: str) -> None:
        """What follows belongs to `phase`."""
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

    def splice(self, storages: Sequence[Storage], events: Sequence[int]) -> int:
        """Append a recorded stretch that numbers its own storages from 0; returns what its 0 became."""
        offset = len(self.storages)
        self.storages.extend(storages)
        self.continue_splice(offset, events)
        return offset

    def continue_splice(self, offset: int, events: Sequence[int]) -> None:
        """Append more events of the stretch whose 0 became `offset`."""
        self.events.extend([event + offset if event >= 0 else event - offset for event in events])

    def timeline(self) -> Timeline:
        """What was collected."""
        return Timeline(self.storages, self.events, self.marks)
