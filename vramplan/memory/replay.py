"""Replays a timeline through the simulated caching allocator."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.dataclass import dataclass
from vramplan.memory.allocator import UNLIMITED, Action, AllocatorSettings, Block, CachingAllocator, OutOfMemory


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator did over a timeline. All sizes are bytes."""

    allocated: Sequence[int]
    """Bytes of whole blocks in use after each event, up to the one that ran out of memory; empty if not asked for."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    out_of_memory: bool
    refused_bytes: int = UNLIMITED
    """The smallest reserved total that the device refused. Every capacity from the reserved peak up to, not including,
    this one has the same replay: the allocator compares its capacity with nothing else."""
    history: Sequence[Action] = ()
    """Every action of the allocator, if recorded: those on segments precede the event that needed them."""


def replay(
    events: Sequence[int],
    sizes: Sequence[int],
    capacity: int = UNLIMITED,
    settings: AllocatorSettings | None = None,
    record: bool = False,
    streams: Sequence[int] | None = None,
    levels: bool = True,
) -> Replay:
    """The replay of a :class:`vramplan.memory.timeline.Timeline`'s events.

    Args:
        events: number of the storage that is allocated, or ``~number`` of the one that is freed.
        sizes: bytes of each storage.
        capacity: bytes that the device lets the allocator reserve.
        settings: PYTORCH_ALLOC_CONF; None for PyTorch's defaults.
        record: whether to keep the history.
        streams: stream of each storage; None if there is one stream.
        levels: whether to keep the bytes in use after each event.
    """
    history: list[Action] | None = [] if record else None
    allocator = CachingAllocator(capacity, settings, history)
    malloc, free = allocator.malloc, allocator.free
    blocks: dict[int, Block] = {}
    allocated: list[int] = []
    failed = False
    try:
        for event in events:
            if event >= 0:
                block = blocks[event] = malloc(sizes[event], streams[event]) if streams else malloc(sizes[event])
                if history is not None:
                    history.append(Action("alloc", block.address, block.size))
            else:
                block = blocks.pop(~event)
                if history is not None:  # before it merges with its neighbours
                    history.append(Action("free", block.address, block.size))
                free(block)
            if levels:
                allocated.append(allocator.allocated)
    except OutOfMemory as error:
        failed = True
        if history is not None:
            history.append(Action("oom", capacity - error.reserved_bytes, error.requested_bytes))
    return Replay(
        allocated,
        allocator.peak_allocated,
        allocator.peak_reserved,
        allocator.num_retries,
        failed,
        allocator.refused,
        history or (),
    )
