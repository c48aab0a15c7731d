"""Simulates N identical experts by running a few of them and multiplying what stays allocated.

The first and the last experts of a layer are simulated one by one; one between them stands for all the rest. A storage
that outlives the run of that one counts as often as there are such experts, each time with its own size. A storage that
is freed within the run exists once at a time, and the experts that are simulated one by one show it. While the rest run
memory rises or falls evenly, so it is highest at one end: what they free is freed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from vramplan.analytic.autograd.graph import LiveStorage, StorageInfo
from vramplan.memory.allocator import SMALL_SIZE
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.units import round_up

LAST_SIMULATED = 2
"""Experts at the end that are simulated one by one: in backward they come first, where gradients of a shared input are
summed."""


class RepeatedStorage(LiveStorage):
    """The storages of all experts that one stands for."""

    __slots__ = ("__weakref__", "copies", "more")

    def __init__(self, id: int, repeated: RepeatedExperts) -> None:
        super().__init__(id, repeated.events.append)
        self.copies = repeated.copies
        self.more = range(0)

    @property
    def ids(self) -> tuple[int, ...]:
        """Numbers of the storages that it is in the record."""
        return (self.id, *self.more)

    def __del__(self) -> None:
        for id in self.ids:
            self.emit(~id)


class RepeatedExperts:
    """Keeps a tape's record in order while one expert stands for `copies` experts."""

    def __init__(self, events: list[int], storages: list[StorageInfo], transient_gradients: set[int]) -> None:
        self.events, self.storages = events, storages
        self.transient_gradients = transient_gradients
        """As on the tape: gradients that are freed as soon as they are produced."""
        self.copies = 1
        self.is_used = False
        """Whether an expert ever stood for several."""
        self.first_event = 0
        self.live: WeakValueDictionary[int, RepeatedStorage] = WeakValueDictionary()

    def storage(self, id: int) -> RepeatedStorage:
        """A storage of an expert that stands for several."""
        storage = self.live[id] = RepeatedStorage(id, self)
        return storage

    def stand_for(self, copies: int) -> None:
        """All that follows stands for `copies` experts."""
        if copies == self.copies:
            return
        self.is_used = True
        if self.copies > 1:
            self._close()
        self.copies, self.first_event = copies, len(self.events)

    @contextmanager
    def standing_for(self, copies: int) -> Iterator[None]:
        """Context in which one expert stands for `copies`."""
        self.stand_for(copies)
        try:
            yield
        finally:
            self.stand_for(1)

    def _close(self) -> None:
        """Rewrite the expert's events: free earlier storages first, then allocate what it leaves for all experts."""
        events = self.events[self.first_event :]
        allocated = {event for event in events if event >= 0}
        del self.events[self.first_event :]
        self.events += [event for event in events if event < 0 and ~event not in allocated]
        freed = {~event for event in events if event < 0}
        self._repeat_transient([event for event in events if event in self.transient_gradients and event in freed])
        for id in sorted(allocated - freed):
            self._multiply(self.live[id])
        self.live.clear()

    def _repeat_transient(self, gradients: list[int]) -> None:
        """Allocate and free transient gradients once for each expert."""
        for copy in range(self.copies if gradients else 0):
            for first in gradients:
                id, info = first, self.storages[first]
                if copy:
                    id = len(self.storages)
                    self.storages.append(info._replace(module=named(info.module, copy)))
                    self.transient_gradients.add(id)
                self.events += [id, ~id]

    def _multiply(self, storage: RepeatedStorage) -> None:
        """Allocate a storage for all experts; small ones share storages up to SMALL_SIZE, as in the allocator."""
        info, first = self.storages[storage.id], len(self.storages)
        size = round_up(info.num_bytes, BLOCK_BYTES)
        together = min(storage.copies, max(1, SMALL_SIZE // max(size, 1)))
        full, rest = divmod(storage.copies, together)
        sizes = [together] * full + [rest] * (rest > 0)
        self.storages[storage.id] = info._replace(num_bytes=sizes[0] * size)
        self.storages += [info._replace(num_bytes=count * size) for count in sizes[1:]]
        storage.more = range(first, len(self.storages))
        self.events += storage.ids


def named(name: str, copy: int) -> str:
    """Name of the `copy`-th weight or gradient that one stands for; the first keeps its name."""
    return f"{name}#{copy}" if copy else name


def repetitions(count: int) -> list[tuple[int, int]]:
    """The experts to simulate, each with the number of experts that it stands for."""
    simulated = 1 + LAST_SIMULATED
    if count <= simulated + 1:
        return [(number, 1) for number in range(count)]
    return [(0, 1), (1, count - simulated), *((number, 1) for number in range(count - LAST_SIMULATED, count))]
