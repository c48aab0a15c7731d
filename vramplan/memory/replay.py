"""Replays a timeline through the simulated caching allocator."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import field

from vramplan.dataclass import dataclass
from vramplan.memory import passes
from vramplan.memory.allocator import UNLIMITED, Action, AllocatorSettings, Block, CachingAllocator, OutOfMemory
from vramplan.memory.passes_python import check_kinds
from vramplan.memory.timeline import NO_STREAM

MAX_STREAMS = 1024
"""As many as an address of 64 bits has room for, with expandable segments of each."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator did over a timeline. All sizes are bytes."""

    allocated: array[int]
    """Bytes of whole blocks in use after each event, up to the one that ran out of memory; empty if not asked for."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    out_of_memory: bool
    refused_bytes: int = UNLIMITED
    """The smallest reserved total that the device refused. Every capacity from the reserved peak up to, not including,
    this one has the same replay: the allocator compares its capacity with nothing else."""
    history: Sequence[Action] = field(default=())
    """Every action of the allocator, if recorded: those on segments precede the event that needed them."""


@passes.bounded
def replay(
    events: Sequence[int],
    kinds: Sequence[int] | None,
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
        kinds: number of the kind of each storage; None if each is of its own.
        sizes: bytes of each kind.
        capacity: bytes that the device lets the allocator reserve; at most `UNLIMITED`.
        settings: PYTORCH_ALLOC_CONF; None for PyTorch's defaults.
        record: whether to keep the history, which takes the time of plain Python.
        streams: stream of each kind; None if there is one stream. The cache is emptied where a kind on
            :data:`~vramplan.memory.timeline.NO_STREAM` is allocated.
        levels: whether to keep the bytes in use after each event.

    Raises:
        ValueError: if an event names a storage without a kind, allocates one that is allocated, or frees one that is
            not; if a kind has no size or stream.
        TooManyBytesError: if a size is larger than 2**60 bytes, or addresses of 64 bits run out.
    """
    if kinds is None:
        kinds = range(len(sizes))
    events, kinds, sizes = passes.ints(events), passes.ints(kinds), passes.longs(sizes)
    streams = None if streams is None else passes.ints(streams)
    if streams is not None and len(streams) != len(sizes):
        raise ValueError("expected the stream of each kind")
    if streams and not NO_STREAM <= min(streams) <= max(streams) < MAX_STREAMS:
        raise ValueError(f"a stream is not between {NO_STREAM} and {MAX_STREAMS - 1}")
    capacity, settings = min(capacity, UNLIMITED), settings or AllocatorSettings()
    if record or passes.compiled is None:
        return replay_in_python(events, kinds, sizes, capacity, settings, record, streams, levels)
    allocated = array("q")
    data, *rest = passes.compiled.replay(
        events.tobytes(),
        kinds.tobytes(),
        sizes.tobytes(),
        streams.tobytes() if streams else b"",
        capacity,
        settings.expandable_segments,
        settings.max_split_size,
        settings.max_non_split_rounding,
        settings.roundup_power2_divisions,
        levels,
    )
    allocated.frombytes(data)
    return Replay(allocated, *rest)


def replay_in_python(
    events: array[int],
    kinds: array[int],
    sizes: array[int],
    capacity: int,
    settings: AllocatorSettings,
    record: bool,
    streams: Sequence[int] | None,
    levels: bool,
) -> Replay:
    """:func:`replay` through :class:`vramplan.memory.allocator.CachingAllocator`, which follows PyTorch's structure."""
    check_kinds(kinds, sizes)
    history: list[Action] | None = [] if record else None
    allocator = CachingAllocator(capacity, settings, history)
    malloc, free = allocator.malloc, allocator.free
    blocks: list[Block | None] = [None] * len(kinds)
    allocated = array("q")
    failed = False
    try:
        for index, event in enumerate(events):
            number = event if event >= 0 else ~event
            if number >= len(kinds):
                raise ValueError(f"event {index} names a storage that is not listed")
            block = blocks[number]
            if streams and streams[kinds[number]] == NO_STREAM:
                if event >= 0:
                    allocator.empty_cache()
                if history is not None:
                    history.append(Action("empty_cache", 0, 0))
            elif event >= 0:
                if block is not None:
                    raise ValueError(f"event {index} allocates a storage that is allocated")
                kind = kinds[number]
                block = blocks[number] = malloc(sizes[kind], streams[kind]) if streams else malloc(sizes[kind])
                if history is not None:
                    history.append(Action("alloc", block.address, block.size))
            else:
                if block is None:
                    raise ValueError(f"event {index} frees a storage that is not allocated")
                if history is not None:  # before it merges with its neighbours
                    history.append(Action("free", block.address, block.size))
                free(block)
                blocks[number] = None
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
