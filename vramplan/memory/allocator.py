"""Simulates PyTorch's CUDA caching allocator: the memory that stays reserved as tensors are allocated and freed.

Mirrors c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of torch 2.13; each constant names the one it
mirrors. Blocks of a segment form a linked list; free ones are in their pool, ordered by size, then address
(BlockComparatorSize). A block serves only the stream that it was allocated on, so each stream has its own pools.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from vramplan.dataclass import dataclass
from vramplan.units import MiB, round_up

MIN_BLOCK = 512
"""kMinBlockSize: all sizes are rounded to it."""
SMALL_SIZE = MiB
"""kSmallSize: the largest request served from the small pool."""
SMALL_BUFFER = 2 * MiB
"""kSmallBuffer: segment of the small pool."""
LARGE_BUFFER = 20 * MiB
"""kLargeBuffer (large_segment_size_mb): segment for requests between 1 and 10 MiB."""
MIN_LARGE_ALLOC = 10 * MiB
"""kMinLargeAlloc: from here on a segment is the request itself, rounded to ROUND_LARGE."""
ROUND_LARGE = 2 * MiB
"""kRoundLarge."""
SPACE = LARGE_BUFFER << 26
"""Addresses reserved for an expandable segment, in whole pages of both pools."""
UNLIMITED = 1 << 62
"""More bytes than any device has."""


def segment_bytes(size: int) -> int:
    """The segment that PyTorch asks of CUDA for a request of this many bytes (get_allocation_size)."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE_ALLOC else round_up(size, ROUND_LARGE)


class OutOfMemory(Exception):
    """The device cannot serve a request even after all cached segments were released."""

    def __init__(self, requested_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"{requested_bytes} bytes requested, {reserved_bytes} reserved")
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """PYTORCH_ALLOC_CONF. Sizes are bytes."""

    expandable_segments: bool = False
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = 20 * MiB
    roundup_power2_divisions: int = 0


class Action(NamedTuple):
    """An action of the allocator, named as in torch.cuda.memory._snapshot; a free is one action, ``free``."""

    name: str
    address: int
    """For ``oom``, the bytes left on the device."""
    num_bytes: int
    """Of the whole block or segment; for ``oom``, those requested."""


class Block:
    """A part of a segment: free, in use, or, in an expandable segment, not mapped to memory."""

    __slots__ = ("address", "after", "before", "free", "mapped", "pool", "size")

    def __init__(
        self,
        address: int,
        size: int,
        pool: Pool,
        before: Block | None = None,
        after: Block | None = None,
        free: bool = False,
        mapped: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.before = before
        self.after = after
        self.free = free
        """Whether it is mapped and not in use."""
        self.mapped = mapped

    @property
    def can_grow_to(self) -> int:
        """Bytes including what could be mapped right after it (get_free_block: expandable_size)."""
        return self.size + (self.after.size if self.after is not None and not self.after.mapped else 0)


class Pool:
    """The free blocks of one size class and stream, in the allocator's order."""

    __slots__ = ("blocks", "keys", "page", "small", "unmapped")

    def __init__(self, small: bool, number: int, expandable: bool) -> None:
        self.small = small
        self.keys: list[int] = []  # size << 64 | address, sorted
        self.blocks: list[Block] = []
        """The free block of each key."""
        self.page = SMALL_BUFFER if small else LARGE_BUFFER
        """Bytes mapped at a time in an expandable segment."""
        space = Block(SPACE * (number + 1), SPACE, self, mapped=False)
        self.unmapped = [space] if expandable else []
        """Blocks without memory by address: at first one, larger than any device."""

    def insert(self, block: Block) -> None:
        """Add a block, which becomes free."""
        block.free = True
        key = block.size << 64 | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Remove a block, which is no longer free."""
        block.free = False
        index = bisect_left(self.keys, block.size << 64 | block.address)
        del self.keys[index], self.blocks[index]


class CachingAllocator:
    """`malloc` and `free` as torch.cuda does them, on a device of `capacity` bytes.

    `allocated` counts whole blocks, as torch.cuda.memory_allocated does: a large block whose remainder is too small to
    split off is handed out whole. Actions on segments are appended to `history`, if given.
    """

    def __init__(
        self,
        capacity: int = UNLIMITED,
        settings: AllocatorSettings | None = None,
        history: list[Action] | None = None,
    ) -> None:
        self.capacity = capacity
        self.settings = settings or AllocatorSettings()
        self.history = history
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.num_retries = 0
        self.refused = UNLIMITED
        self.pools: dict[int, tuple[Pool, Pool]] = {}  # by stream: small, large
        self._expands = self.settings.expandable_segments
        self._rounds_up = self.settings.roundup_power2_divisions > 1
        self._takes_any = self._expands or self.settings.max_split_size == UNLIMITED
        self._next_address = 0

    def malloc(self, num_bytes: int, stream: int = 0) -> Block:
        """Serve a request on a stream.

        Raises:
            OutOfMemory: if the device lacks memory even after the cache is emptied.
        """
        size = self.round_size(num_bytes) if self._rounds_up else num_bytes + 511 & ~511 or MIN_BLOCK
        pools = self.pools.get(stream) or self._new_pools(stream)
        pool = pools[size > SMALL_SIZE]
        keys = pool.keys
        index = bisect_left(keys, size << 64)
        if index < len(keys) and (self._takes_any or self._may_take(size, keys[index] >> 64)):
            if self._expands:
                index = _least_growing(pool, index)
            block = pool.blocks.pop(index)
            del keys[index]
            block.free = False
        elif self._expands:
            block = self._grow(size, pool)
        else:
            block = self._new_segment(size, pool)
        remaining = block.size - size
        if remaining and (
            remaining > SMALL_SIZE and size < self.settings.max_split_size
            if size > SMALL_SIZE and not self._expands
            else remaining >= MIN_BLOCK
        ):  # should_split
            address, after = block.address + size, block.after
            rest = Block(address, remaining, pool, block, after, True)
            if after is not None:
                after.before = rest
            block.after, block.size = rest, size
            key = remaining << 64 | address
            index = bisect_left(keys, key)
            keys.insert(index, key)
            pool.blocks.insert(index, rest)
        allocated = self.allocated = self.allocated + block.size
        if allocated > self.peak_allocated:
            self.peak_allocated = allocated
        return block

    def free(self, block: Block) -> None:
        """Free a block; it merges with free neighbours of its segment."""
        self.allocated -= block.size
        pool = block.pool
        keys, blocks = pool.keys, pool.blocks
        before, after = block.before, block.after
        if before is not None and before.free:
            index = bisect_left(keys, before.size << 64 | before.address)
            del keys[index], blocks[index]
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            index = bisect_left(keys, after.size << 64 | after.address)
            del keys[index], blocks[index]
            block.size += after.size
            block.after = beyond = after.after
            if beyond is not None:
                beyond.before = block
        block.free = True
        key = block.size << 64 | block.address
        index = bisect_left(keys, key)
        keys.insert(index, key)
        blocks.insert(index, block)

    def round_size(self, num_bytes: int) -> int:
        """Rounded bytes of a request (round_size, roundup_power2_next_division)."""
        divisions = self.settings.roundup_power2_divisions
        if divisions > 1 and num_bytes > MIN_BLOCK * divisions:
            power = 1 << (num_bytes.bit_length() - 1)
            return num_bytes if num_bytes == power else power + round_up(num_bytes - power, max(1, power // divisions))
        return max(MIN_BLOCK, round_up(num_bytes, MIN_BLOCK))

    def empty_cache(self) -> None:
        """Release every completely free segment, or page, to the device (release_cached_blocks)."""
        for pool in [pool for pools in self.pools.values() for pool in pools]:
            for block in list(pool.blocks):
                if self.settings.expandable_segments:
                    self._unmap(block, pool)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved -= block.size
                    self._note("segment_free", block)

    def _new_pools(self, stream: int) -> tuple[Pool, Pool]:
        pools = self.pools[stream] = (Pool(True, 2 * stream, self._expands), Pool(False, 2 * stream + 1, self._expands))
        return pools

    def _may_take(self, size: int, block_size: int) -> bool:
        """Whether the best fit is acceptable (get_free_block); there is no second candidate."""
        limit = self.settings.max_split_size
        if size < limit:
            return block_size < limit
        return block_size < size + self.settings.max_non_split_rounding

    def _new_segment(self, size: int, pool: Pool) -> Block:
        segment = segment_bytes(size)
        self._retries(segment)
        self._reserve(segment, size)
        if self._next_address > UNLIMITED - segment:
            raise OverflowError("all segments so far have more than 2**62 bytes")
        block = Block(self._next_address, segment, pool)
        self._next_address += segment + ROUND_LARGE  # segments never touch
        self._note("segment_alloc", block)
        return block

    def _grow(self, size: int, pool: Pool) -> Block:
        """A block of at least so many bytes, mapped at the first place large enough (try_allocate_expandable_block)."""
        block, lacking = _place_to_grow(size, pool)
        if self._retries(lacking):
            block, lacking = _place_to_grow(size, pool)  # pages in between may be free to map now
        self._reserve(lacking, size)
        block = block if block.mapped else self._map(block, min(block.size, size))
        while block.size < size:
            assert block.after is not None
            block = self._map(block.after, min(size - block.size, block.after.size))
        pool.remove(block)
        return block

    def _map(self, block: Block, size: int) -> Block:
        """Map the first bytes of a block, in whole pages; it merges with free neighbours (map_block)."""
        pool = block.pool
        mapped = round_up(size, pool.page)
        self._note("segment_map", Block(block.address, mapped, pool))
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, pool, mapped=False)
            _between(block, rest, block.after)
            block.size = mapped
            pool.unmapped[pool.unmapped.index(block)] = rest
        else:
            pool.unmapped.remove(block)
        block.mapped = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                pool.remove(other)
                block = _joined(block, other)
        pool.insert(block)
        return block

    def _unmap(self, block: Block, pool: Pool) -> None:
        """Release a free block's whole pages; the rest on both sides stays free (unmap_block)."""
        first, end = round_up(block.address, pool.page), (block.address + block.size) // pool.page * pool.page
        if first >= end:
            return
        pool.remove(block)
        if first > block.address:
            left = Block(block.address, first - block.address, pool)
            _between(block.before, left, block)
            pool.insert(left)
        if end < block.address + block.size:
            right = Block(end, block.address + block.size - end, pool)
            _between(block, right, block.after)
            pool.insert(right)
        block.address, block.size, block.mapped = first, end - first, False
        self.reserved -= block.size
        self._note("segment_unmap", block)
        for other in (block.before, block.after):
            if other is not None and not other.mapped:
                pool.unmapped.remove(other)
                block = _joined(block, other)
        insort(pool.unmapped, block, key=lambda unmapped: unmapped.address)

    def _note(self, name: str, block: Block) -> None:
        if self.history is not None:
            self.history.append(Action(name, block.address, block.size))

    def _retries(self, num_bytes: int) -> bool:
        """Empty the cache if the device lacks so many bytes; whether it did."""
        lacking = self.reserved + num_bytes > self.capacity
        if lacking:
            self.num_retries += 1
            self.refused = min(self.refused, self.reserved + num_bytes)
            self.empty_cache()
        return lacking

    def _reserve(self, segment: int, size: int) -> None:
        if self.reserved + segment > self.capacity:
            self.refused = min(self.refused, self.reserved + segment)
            raise OutOfMemory(size, self.reserved)
        self.reserved += segment
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved


def _least_growing(pool: Pool, index: int) -> int:
    """Index of the fitting block with the smallest expandable size; the search stops at the first larger one."""
    keys, blocks = pool.keys, pool.blocks
    while index + 1 < len(keys) and blocks[index + 1].can_grow_to < blocks[index].can_grow_to:
        index += 1
    return index


def _place_to_grow(size: int, pool: Pool) -> tuple[Block, int]:
    """(the first of adjacent blocks that together have so many bytes, bytes of the pages still to map)."""
    for unmapped in pool.unmapped:
        first = unmapped.before if unmapped.before is not None and _is_vacant(unmapped.before) else unmapped
        block: Block | None = first
        available = lacking = 0
        while block is not None and _is_vacant(block) and available < size:
            lacking += 0 if block.mapped else round_up(min(size - available, block.size), pool.page)
            available += block.size
            block = block.after
        if available >= size:
            return first, lacking
    raise OverflowError("an expandable segment ran out of addresses")  # it has more than any device has bytes


def _is_vacant(block: Block) -> bool:
    return block.free or not block.mapped


def _between(before: Block | None, block: Block, after: Block | None) -> None:
    block.before, block.after = before, after
    if before is not None:
        before.after = block
    if after is not None:
        after.before = block


def _joined(block: Block, other: Block) -> Block:
    """The first of two neighbours, extended by the second."""
    first, second = (other, block) if other.address < block.address else (block, other)
    first.size += second.size
    first.after = second.after
    if first.after is not None:
        first.after.before = first
    return first
