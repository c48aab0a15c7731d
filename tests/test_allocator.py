"""The caching allocator's rules: invariants, and the cases its source documents."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramplan
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings, Block, CachingAllocator, OutOfMemory
from vramplan.memory.recorder import Recorder
from vramplan.memory.replay import replay
from vramplan.memory.timeline import Storage
from vramplan.units import MiB

SIZES = st.one_of(
    st.integers(1, 4096), st.integers(1, 2 * MiB), st.integers(MiB, 12 * MiB), st.integers(10 * MiB, 80 * MiB)
)
ALIKE = st.one_of(SIZES, *(st.just(size) for size in (0, 4096, MiB // 3, 5 * MiB, 12 * MiB, 12 * MiB - 512, 40 * MiB)))
"""Sizes of which many are the same, as they are in a step."""
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(max_split_size=32 * MiB),
        AllocatorSettings(roundup_power2_divisions=4),
    ]
)


def check(allocator: CachingAllocator, used: list[Block]) -> None:
    """Blocks tile their segments without overlap, free ones are in their pool, neighbours are never both free."""
    pools = [pool for pools in allocator.pools.values() for pool in pools]
    free = [block for pool in pools for block in pool.blocks]
    assert all(block.free for block in free)
    assert not any(block.free for block in used)
    for pool in pools:
        assert pool.keys == sorted(pool.keys) == [block.size << 64 | block.address for block in pool.blocks]
    everything = sorted((*free, *used), key=lambda block: block.address)
    for block, following in pairwise(everything):
        assert block.address + block.size <= following.address
        if block.after is following:
            assert block.address + block.size == following.address
            assert following.before is block
            assert not (block.free and following.free)
    assert sum(block.size for block in everything) == allocator.reserved
    assert sum(block.size for block in used) == allocator.allocated <= allocator.reserved


@settings(max_examples=150, deadline=None)
@given(st.data(), SETTINGS)
def test_invariants(data: st.DataObject, chosen: AllocatorSettings) -> None:
    allocator = CachingAllocator(settings=chosen)
    used: list[Block] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if used and data.draw(st.booleans()):
            allocator.free(used.pop(data.draw(st.integers(0, len(used) - 1))))
        else:
            size, stream = data.draw(SIZES), data.draw(st.integers(0, 1))
            used.append(allocator.malloc(size, stream))
            assert used[-1].pool in allocator.pools[stream]
            assert used[-1].size >= size
        check(allocator, used)
    for block in used:
        allocator.free(block)
    check(allocator, [])
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


@settings(max_examples=80, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=30), st.integers(20, 200))
def test_a_capacity_is_never_passed(sizes: list[int], capacity_mib: int) -> None:
    allocator = CachingAllocator(capacity_mib * MiB)
    try:
        for number, size in enumerate(sizes):
            block = allocator.malloc(size)
            if number % 2:
                allocator.free(block)
    except OutOfMemory:
        assert allocator.num_retries > 0
    assert allocator.peak_reserved <= capacity_mib * MiB


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MiB),
        (MiB, MiB, 2 * MiB),
        (MiB + 1, MiB + 512, 20 * MiB),
        (21 * MiB // 2, 21 * MiB // 2, 12 * MiB),  # 1.5 MiB left: split off
        (int(11.2 * MiB) // 512 * 512, 12 * MiB, 12 * MiB),  # 0.8 MiB left: handed out whole
        (8_519_680, 8_519_680, 20 * MiB),  # cuBLAS's workspace opens a 20 MiB segment
    ],
)
def test_a_first_request(request_bytes: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(request_bytes)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_best_fit_takes_the_smallest_block_that_is_large_enough() -> None:
    allocator = CachingAllocator()
    large, small, last = (allocator.malloc(size * MiB) for size in (40, 30, 50))
    for block in (large, small, last):
        allocator.free(block)
    assert allocator.malloc(29 * MiB).address == small.address


def test_expandable_segments_grow_by_pages() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    first = allocator.malloc(11 * MiB)
    assert allocator.reserved == 20 * MiB
    allocator.malloc(11 * MiB)
    assert allocator.reserved == 40 * MiB  # 9 MiB waited at the end, 2 MiB more need one page
    allocator.free(first)
    allocator.malloc(11 * MiB)
    assert allocator.reserved == 40 * MiB


def test_expandable_segments_give_pages_back_between_blocks_in_use() -> None:
    """release_blocks unmaps every whole page of every free block; 60 MiB in one piece are then mapped at the end."""
    allocator = CachingAllocator(140 * MiB, AllocatorSettings(expandable_segments=True))
    first, _, _ = (allocator.malloc(40 * MiB) for _ in range(3))
    allocator.free(first)
    last = allocator.malloc(60 * MiB)
    assert (allocator.reserved, allocator.num_retries) == (140 * MiB, 1)
    allocator.free(last)
    assert allocator.malloc(40 * MiB).address == last.address
    assert allocator.num_retries == 1


def test_expandable_segments_map_again_what_they_gave_back() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    first, second = allocator.malloc(50 * MiB), allocator.malloc(50 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.reserved == 60 * MiB  # the page that both lie on stays
    assert allocator.malloc(50 * MiB).address == first.address
    assert allocator.reserved == 100 * MiB
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved == 60 * MiB


def test_the_end_of_an_expandable_segment_is_spared() -> None:
    """get_free_block takes the size for one that a block can expand to."""
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=True))
    first, _, last = allocator.malloc(40 * MiB), allocator.malloc(20 * MiB), allocator.malloc(20 * MiB)
    allocator.free(first)
    allocator.free(last)
    assert allocator.malloc(20 * MiB).address == first.address


def test_a_full_device_gives_cached_segments_back_before_it_fails() -> None:
    run = replay([0, ~0, 1], None, [60 * MiB, 80 * MiB], capacity=100 * MiB)
    assert not run.out_of_memory
    assert run.num_retries == 1
    assert run.peak_reserved_bytes == 80 * MiB
    assert replay([0, 1], None, [60 * MiB, 80 * MiB], capacity=100 * MiB).out_of_memory


def test_max_split_size_keeps_large_blocks_whole() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(max_split_size=32 * MiB))
    block = allocator.malloc(64 * MiB)
    allocator.free(block)
    allocator.malloc(20 * MiB)  # may not cut the large block
    assert allocator.reserved == 84 * MiB
    assert allocator.malloc(60 * MiB).size == 64 * MiB  # within max_non_split_rounding


def test_roundup_power2_divisions() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(roundup_power2_divisions=4))
    assert allocator.round_size(1200 * 1024) == 1280 * 1024
    assert allocator.round_size(1024 * 1024) == 1024 * 1024
    assert allocator.round_size(100) == 512


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(ALIKE, min_size=1, max_size=80), st.sampled_from([100, 200, 400, UNLIMITED // MiB]))
def test_what_a_replay_keeps_changes_nothing_else(data: st.DataObject, sizes: list[int], capacity_mib: int) -> None:
    events: list[int] = []
    live: list[int] = []
    for number in range(len(sizes)):
        events.append(number)
        live.append(number)
        while live and data.draw(st.booleans()):
            events.append(~live.pop(data.draw(st.integers(0, len(live) - 1))))
    run = replay(events, None, sizes, capacity_mib * MiB)
    asked = replay(events, None, sizes, capacity_mib * MiB, record=True)
    assert replace(asked, history=()) == run
    brief = replay(events, None, sizes, capacity_mib * MiB, levels=False)
    assert brief == replace(run, allocated=array("q"))


@pytest.mark.parametrize(("method", "micro", "length"), [("lora", 7, 512), ("full", 2, 2048), ("qlora", 3, 777)])
def test_recording_a_step_changes_nothing(method: str, micro: int, length: int) -> None:
    one = vramplan.estimate("qwen2.5-0.5b", "h100", method=method, micro_batch_size=micro, sequence_length=length)
    assert one.timeline is not None
    step = one.timeline.events, one.timeline.kind_of, one.timeline.sizes()
    retries = []
    for share in (1.0, 0.98, 0.95, 0.9, 0.8):
        run = replay(*step, int(one.peak_reserved_bytes * share))
        assert run == replace(replay(*step, int(one.peak_reserved_bytes * share), record=True), history=())
        retries.append(run.num_retries)
    assert retries[0] == 0 < retries[1]


def test_what_one_stream_freed_does_not_serve_another() -> None:
    sizes, events = [60 * MiB, 60 * MiB], [0, ~0, 1]
    assert replay(events, None, sizes).peak_reserved_bytes == 60 * MiB
    assert replay(events, None, sizes, streams=[0, 1]).peak_reserved_bytes == 120 * MiB


def test_emptying_the_cache_gives_back_what_is_free() -> None:
    record = Recorder()
    kept, freed = (record.allocate(Storage(size * MiB, "temporary", "tensor")) for size in (30, 60))
    record.free(freed)
    record.empty_cache()
    record.allocate(Storage(40 * MiB, "temporary", "tensor"))
    timeline = record.timeline()
    arguments = timeline.events, timeline.kind_of, timeline.kinds.sizes
    for options in (AllocatorSettings(), AllocatorSettings(expandable_segments=True)):
        run = replay(*arguments, settings=options, record=True, streams=timeline.kinds.streams)
        assert run.peak_reserved_bytes == (100 if options.expandable_segments else 90) * MiB
        assert replace(run, history=()) == replay(*arguments, settings=options, streams=timeline.kinds.streams)
        released = "segment_unmap" if options.expandable_segments else "segment_free"
        names = [action.name for action in run.history if action.name in ("alloc", "free", "empty_cache", released)]
        assert names == ["alloc", "alloc", "free", released, "empty_cache", "empty_cache", "alloc"]
    assert record.live_bytes() == timeline.live_bytes()[-1] == (30 + 40) * MiB
    assert kept == 0
