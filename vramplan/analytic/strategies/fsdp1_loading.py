"""How a model comes into FSDP 1: each unit is on the GPU twice, as its weights and as one flat weight, then divided.

torch 2.13, distributed/fsdp/_init_utils.py: _init_param_handle_from_module. The weights of a unit are moved to the GPU
one by one, sent from the first GPU to the others (``sync_module_states``, transformers' default), and copied into the
flat weight, of which each GPU copies its own part (_flat_param.py: FlatParamHandle.shard). Only then are the flat
weight and the weights freed. Layers come one after another; what lies outside of them, such as embedding and head, is
the last unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, MiB

BUCKET_BYTES = 250 * MiB
"""From this size on a bucket of weights is sent (_init_utils.py: PARAM_BROADCAST_BUCKET_SIZE)."""
IN_FLIGHT = 2
"""Buckets that are sent at a time (torch/csrc/distributed/c10d/comm.cpp: broadcast_coalesced)."""


def buckets(sizes: Sequence[int]) -> Iterator[int]:
    """Bytes of each bucket that is copied together; a weight that is alone in one is sent from where it is."""
    filled = count = 0
    for number, size in enumerate(sizes, 1):
        filled, count = filled + size, count + 1
        if filled >= BUCKET_BYTES or number == len(sizes):
            yield filled if count > 1 else 0
            filled = count = 0


def send(record: Recorder, name: str, sizes: Sequence[int]) -> None:
    """Send a unit's weights of these bytes from the first GPU to the others, copied together into buckets."""
    in_flight: deque[Sequence[int]] = deque()
    for size in buckets(sizes):
        if len(in_flight) == IN_FLIGHT:
            record.free_all(in_flight.popleft())
        bucket = Storage(size, "communication", f"{name}: weights that are sent while loading")
        in_flight.append(record.allocate_all([bucket] if size else []))
    for numbers in in_flight:
        record.free_all(numbers)


class LoadedUnit:
    """A unit's weights as they were loaded: flattened, and the own part."""

    def __init__(self, name: str, own: int, cards: int, dtypes: tuple[str, str, str]) -> None:
        """Of `own` elements on each of so many GPUs, in these dtypes: loaded, stored, and used."""
        self.name, self.dtype, self.is_alone = name, dtypes[0], cards == 1
        loaded, stored, used = (own * DTYPE_BYTES[dtype] for dtype in dtypes)
        self.part = Storage(loaded, "parameter", name, f"{own} {dtypes[0]}, own part")
        self.flat = Storage(loaded * cards, "temporary", f"{name}: flat weights, before they are divided")
        sizes = [used] if dtypes[1] != dtypes[2] else []
        if not self.is_alone:
            sizes += [used * cards, stored * cards][: len(sizes) + 1]
        self.attributes = [
            Storage(size, "temporary", f"{name}: made and freed as the first forward begins") for size in sizes
        ]
        """Of the flat weight, made and freed at once (_flat_param.py: init_flat_param_attributes)."""

    def divide(self, record: Recorder, sizes: Sequence[int]) -> int:
        """Send weights of these bytes, flatten and divide them; the number of the own part."""
        send(record, self.name, sizes)
        if self.is_alone:  # NO_SHARD
            return record.allocate(self.part)
        flat = record.allocate(self.flat)
        part = record.allocate(self.part)
        record.free(flat)
        return part
