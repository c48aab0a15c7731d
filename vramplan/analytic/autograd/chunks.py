"""Loops over equal chunks, of which a few are simulated: one of those in the middle stands for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

FIRST, LAST = 2, 3
"""Chunks simulated one by one at both ends. The first has no state yet, nothing uses the state of the last, and so the
last but one is the first whose backward gives a gradient for what makes the state: the next to them are like all."""


class Chunk(NamedTuple):
    """A chunk that is simulated, and those that it stands for."""

    first: int
    """Number of the first chunk in the loop that it stands for."""
    copies: int
    """How many it stands for."""

    @property
    def last(self) -> int:
        """Number of the last chunk that it stands for."""
        return self.first + self.copies - 1

    def distance_from(self, other: Chunk) -> int:
        """Number of chunks from the nearest that `other` stands for to the nearest of this one's; 0 to itself."""
        if self.first > other.first:
            return self.first - other.last
        return self.last - other.first if self.first < other.first else 0


def simulated_chunks(count: int) -> Iterator[Chunk | None]:
    """The chunks to simulate of a loop of `count`; None for each if none would stand for others."""
    left_out = count - FIRST - LAST
    if left_out < 2:
        yield from [None] * count
        return
    for number in range(FIRST):
        yield Chunk(number, 1)
    yield Chunk(FIRST, left_out)
    for number in range(count - LAST, count):
        yield Chunk(number, 1)
