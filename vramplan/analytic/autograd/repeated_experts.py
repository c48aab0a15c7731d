"""What many parts of a layer do one after another, played once for most of them: experts that take turns.

Between those that are played for themselves, one stands for all others. What lives from its turn on counts as often as
there are others, each in a storage of its own size; what comes and goes within its turn is never there more than once
at a time, and those that are played for themselves show that. While others take their turns memory goes up or down
evenly, so it is highest at an end: what they give back is given back first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from vramplan.analytic.autograd.graph import LiveStorage, StorageInfo
from vramplan.memory.allocator import SMALL_SIZE
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.units import round_up

LAST = 2
"""Turns at the end that are played for themselves: in backward they are first, where gradients of a shared input meet
in a sum of their own."""


class RepeatedStorage(LiveStorage):
    """The storages of all that one stands for."""

    __slots__ = ("__weakref__", "copies", "more")

    def __init__(self, id: int, turns: RepeatedExperts) -> None:
        super().__init__(id, turns.events.append)
        self.copies = turns.copies
        self.more = range(0)

    @property
    def ids(self) -> tuple[int, ...]:
        """All that it is recorded as."""
        return (self.id, *self.more)

    def __del__(self) -> None:
        for id in self.ids:
            self.emit(~id)


class RepeatedExperts:
    """Keeps the record of a tape in order while one stands for many; `copies` is how many that are now."""

    def __init__(self, events: list[int], storages: list[StorageInfo], taken: set[int]) -> None:
        self.events, self.storages = events, storages
        self.taken = taken
        """Gradients that somebody takes as they come, each expert's."""
        self.copies = 1
        self.begun = 0
        self.made: WeakValueDictionary[int, RepeatedStorage] = WeakValueDictionary()

    def storage(self, id: int) -> RepeatedStorage:
        """A storage made in a turn that stands for many."""
        made = self.made[id] = RepeatedStorage(id, self)
        return made

    def stand_for(self, copies: int) -> None:
        """What follows stands for so many."""
        if copies == self.copies:
            return
        if self.copies > 1:
            self._close()
        self.copies, self.begun = copies, len(self.events)

    @contextmanager
    def taken_by(self, copies: int) -> Iterator[None]:
        """A turn that stands for so many."""
        self.stand_for(copies)
        try:
            yield
        finally:
            self.stand_for(1)

    def _close(self) -> None:
        """What was there before and went goes first; then comes, for all, what is left of the turn."""
        events = self.events[self.begun :]
        own = {event for event in events if event >= 0}
        del self.events[self.begun :]
        self.events += [event for event in events if event < 0 and ~event not in own]
        gone = {~event for event in events if event < 0}
        self._take([event for event in events if event in self.taken and event in gone])
        for id in sorted(own - gone):
            self._multiply(self.made[id])
        self.made.clear()

    def _take(self, gradients: list[int]) -> None:
        """Those that go as they come do so for each."""
        for copy in range(self.copies if gradients else 0):
            for first in gradients:
                id, info = first, self.storages[first]
                if copy:
                    id = len(self.storages)
                    self.storages.append(info._replace(module=named(info.module, copy)))
                    self.taken.add(id)
                self.events += [id, ~id]

    def _multiply(self, one: RepeatedStorage) -> None:
        """Small ones share storages as far as these stay small: the allocator packs them so."""
        info, first = self.storages[one.id], len(self.storages)
        size = round_up(info.num_bytes, BLOCK_BYTES)
        together = min(one.copies, max(1, SMALL_SIZE // max(size, 1)))
        full, rest = divmod(one.copies, together)
        sizes = [together] * full + [rest] * (rest > 0)
        self.storages[one.id] = info._replace(num_bytes=sizes[0] * size)
        self.storages += [info._replace(num_bytes=count * size) for count in sizes[1:]]
        one.more = range(first, len(self.storages))
        self.events += one.ids


def named(name: str, copy: int) -> str:
    """What a weight or gradient is called that another one stands for."""
    return f"{name}#{copy}" if copy else name


def turns_of(count: int) -> list[tuple[int, int]]:
    """The first of each turn to play, and how many it stands for."""
    alone = 1 + LAST
    if count <= alone + 1:
        return [(number, 1) for number in range(count)]
    return [(0, 1), (1, count - alone), *((number, 1) for number in range(count - LAST, count))]
