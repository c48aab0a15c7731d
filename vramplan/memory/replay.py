"""A timeline through the caching allocator.

On one stream, under default settings, where searches for a batch spend their time, the allocator's rules stand in one
loop (:func:`_by_default`); otherwise :class:`vramplan.memory.allocator.CachingAllocator` itself is asked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vramplan.memory.allocator import (
    LARGE_BUFFER,
    MIN_BLOCK,
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SMALL_BUFFER,
    SMALL_SIZE,
    UNLIMITED,
    Action,
    AllocatorSettings,
    Block,
    CachingAllocator,
    OutOfMemory,
)
from vramplan.units import round_up


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator did over a timeline."""

    allocated: Sequence[int]
    """Bytes of whole blocks in use after each event, as far as the replay came; nothing where only its end counts."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_retries: int
    out_of_memory: bool
    refused_bytes: int = UNLIMITED
    """The least total that was asked for in vain: every capacity from the reserved peak up to, not including, this one
    has the same replay, since the allocator looks at its capacity nowhere else."""
    history: Sequence[Action] = ()
    """All it did, where asked for: what each event did, preceded by what that took of segments."""


def replay(
    events: Sequence[int],
    sizes: Sequence[int],
    capacity: int = UNLIMITED,
    settings: AllocatorSettings | None = None,
    record: bool = False,
    streams: Sequence[int] | None = None,
    levels: bool = True,
) -> Replay:
    """Run the events of a :class:`vramplan.memory.timeline.Timeline`, each storage once, through the allocator.

    `streams` is the stream of each storage, where there is more than one. `record` keeps its history; without `levels`
    nothing is said of what was allocated.
    """
    if not record and not streams and settings in (None, AllocatorSettings()):
        return _by_default(events, sizes, capacity, levels)
    history: list[Action] | None = [] if record else None
    allocator = CachingAllocator(capacity, settings, history)
    blocks: dict[int, Block] = {}
    allocated: list[int] = []
    malloc, free = allocator.malloc, allocator.free
    failed = False
    try:
        for event in events:
            if event >= 0:
                block = blocks[event] = malloc(sizes[event], streams[event]) if streams else malloc(sizes[event])
                if history is not None:
                    history.append(Action("alloc", block.address, block.size))
            else:
                block = blocks.pop(~event)
                if history is not None:  # before its neighbours join it
                    history.append(Action("free", block.address, block.size))
                free(block)
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


def _by_default(events: Sequence[int], sizes: Sequence[int], capacity: int, levels: bool) -> Replay:
    """Free blocks of each size lie in a bin of their pool, by address; an empty bin goes when a search meets it."""
    rounded = {size: round_up(size, MIN_BLOCK) or MIN_BLOCK for size in set(sizes)}
    sizes = [rounded[size] for size in sizes]
    small: dict[int, list[int]] = {}  # bins of the two pools, and their sizes in order
    large: dict[int, list[int]] = {}
    small_order: list[int] = []
    large_order: list[int] = []
    starts: dict[int, int] = {}  # free blocks: address, size
    ends: dict[int, int] = {}  # where they end, address
    segments: dict[int, int] = {}  # address, size
    place = [0] * len(sizes)
    blocks = sizes.copy()
    reserved = peak = num_retries = next_address = 0
    refused, failed, done = UNLIMITED, False, len(events)

    for event in events:
        if event >= 0:
            size = sizes[event]
            bins = large if size > SMALL_SIZE else small
            bin = bins.get(size)
            if bin:  # an exact fit
                address = place[event] = bin.pop(0)
                del starts[address], ends[address + size]
                continue
            order = large_order if size > SMALL_SIZE else small_order
            index = bisect_left(order, size)
            while index < len(order):  # best fit
                found = order[index]
                bin = bins[found]
                if bin:
                    address = bin.pop(0)
                    del starts[address]
                    break
                del order[index], bins[found]
            else:
                if size <= SMALL_SIZE:
                    found = SMALL_BUFFER
                else:
                    found = LARGE_BUFFER if size < MIN_LARGE_ALLOC else round_up(size, ROUND_LARGE)
                if reserved + found > capacity:
                    num_retries += 1
                    refused = min(refused, reserved + found)
                    reserved -= _empty_cache((small, large), starts, ends, segments)
                if reserved + found > capacity:
                    refused = min(refused, reserved + found)
                    failed, done = True, events.index(event)
                    break
                reserved += found
                peak = max(peak, reserved)
                address = next_address
                next_address += found + ROUND_LARGE  # segments never touch
                segments[address] = found
            place[event] = address
            rest = found - size
            if rest > SMALL_SIZE or (rest and size <= SMALL_SIZE):  # should_split
                after = address + size
                starts[after], ends[after + rest] = rest, after
                if rest in bins:
                    insort(bins[rest], after)
                else:
                    bins[rest] = [after]
                    insort(order, rest)
            else:
                ends.pop(address + found, None)
                blocks[event] = found
        else:
            event = ~event
            address, size = place[event], blocks[event]
            bins = large if sizes[event] > SMALL_SIZE else small
            after = address + size
            if after in starts:
                more = starts.pop(after)
                bins[more].remove(after)
                size += more
                after += more
            if address in ends:
                address = ends.pop(address)
                more = starts[address]
                bins[more].remove(address)
                size += more
            starts[address], ends[after] = size, address
            if size in bins:
                insort(bins[size], address)
            else:
                bins[size] = [address]
                insort(large_order if bins is large else small_order, size)

    allocated: list[int] = []
    if levels:
        allocated += accumulate([blocks[event] if event >= 0 else -blocks[~event] for event in events[:done]])
    return Replay(allocated, max(allocated, default=0), peak, num_retries, failed, refused)


def _empty_cache(
    pools: Sequence[dict[int, list[int]]],
    starts: dict[int, int],
    ends: dict[int, int],
    segments: dict[int, int],
) -> int:
    """Give every wholly free segment back; returns their bytes."""
    given = 0
    for bins in pools:
        for size, bin in bins.items():
            whole = [address for address in bin if segments.get(address) == size]
            for address in whole:
                bin.remove(address)
                del starts[address], ends[address + size], segments[address]
            given += size * len(whole)
    return given
