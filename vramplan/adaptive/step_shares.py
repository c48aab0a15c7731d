"""Which samples of an optimizer step go into which micro-batch, on which rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramplan.adaptive.rung import Rung


def shares(samples: int, micro_batch_size: int, rank: int, world_size: int) -> list[tuple[int, int]]:
    """First sample and the one after the last, of each of a rank's micro-batches in a step.

    What does not fill a micro-batch on each rank is dealt evenly, the first ranks having one sample more.

    >>> shares(8, 2, 0, 2), shares(8, 2, 1, 2)
    ([(0, 2), (4, 6)], [(2, 4), (6, 8)])
    >>> shares(7, 2, 0, 2), shares(7, 2, 1, 2), shares(1, 2, 1, 2)
    ([(0, 2), (4, 6)], [(2, 4), (6, 7)], [])
    """
    whole = samples // (micro_batch_size * world_size)
    spans = [
        (number * micro_batch_size, (number + 1) * micro_batch_size)
        for number in range(rank, whole * world_size, world_size)
    ]
    first = whole * micro_batch_size * world_size
    each, more = divmod(samples - first, world_size)
    first += rank * each + min(rank, more)
    last = first + each + (rank < more)
    return [*spans, (first, last)] if last > first else spans


def rest_of_epoch(
    order: Sequence[int], position: int, limit: int, rung: Rung, rank: int, world_size: int
) -> Iterator[list[int]]:
    """The samples of a rank's micro-batches from a position to the end of the epoch."""
    for start in range(position, limit, rung.global_batch_size):
        samples = min(rung.global_batch_size, limit - start)
        for first, last in shares(samples, rung.micro_batch_size, rank, world_size):
            yield list(order[start + first : start + last])
