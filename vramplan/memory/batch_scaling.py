"""Sizes that grow linearly in the micro-batch, if steps of several sizes do the same operations."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.memory.timeline import Kinds, Storage, Timeline


class LinearSize(NamedTuple):
    """Bytes that grow by the same amount with each sample of the micro-batch."""

    at_zero: int
    """Bytes at micro-batch 0, by extrapolation."""
    per_sample: int

    @classmethod
    def through(cls, first: int, first_bytes: int, last: int, last_bytes: int) -> LinearSize:
        """The size with these bytes at two micro-batches; at the second only if the difference divides evenly."""
        per_sample = (last_bytes - first_bytes) // (last - first) if last > first else 0
        return cls(first_bytes - per_sample * first, per_sample)

    def at(self, micro: int) -> int:
        """Bytes at a micro-batch."""
        return self.at_zero + self.per_sample * micro


def interpolate(first: int, low: Timeline, last: int, high: Timeline, micro: int, gpu: Gpu) -> Timeline:
    """The timeline at a micro-batch on a GPU, from those at two others, which have the same events."""
    numbers: dict[tuple[int, int], int] = {}
    pairs = zip(low.kind_of, high.kind_of, strict=True)
    kind_of = array("i", [numbers.setdefault(pair, len(numbers)) for pair in pairs])

    def storage_at(one: Storage, other: Storage) -> Storage:
        if one.buffer is not None and other.buffer is not None:
            pairs = zip(one.buffer.numbers, other.buffer.numbers, strict=True)
            numbers = tuple(LinearSize.through(first, a, last, b).at(micro) for a, b in pairs)
            buffer = one.buffer._replace(numbers=numbers)
            return Storage(buffer.num_bytes(gpu), one.category, one.label, one.formula, one.in_kernel, buffer=buffer)
        if one.num_bytes == other.num_bytes:
            return one
        size = LinearSize.through(first, one.num_bytes, last, other.num_bytes).at(micro)
        return Storage(size, one.category, one.label, f"{size} bytes at micro-batch {micro}", one.in_kernel)

    kinds = Kinds(storage_at(low.kinds[one], high.kinds[other]) for one, other in numbers)
    return Timeline(kinds, kind_of, low.events, low.marks)
