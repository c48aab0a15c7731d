"""What is said to be needed if most of what PyTorch reserves is cached: a GPU on which it gives that back."""

from __future__ import annotations

from functools import partial

from vramplan.memory.allocator import UNLIMITED
from vramplan.memory.replay import replay
from vramplan.memory.summarize import settle

MIB = 1 << 20
STEPS = 64


def growing() -> tuple[list[int], list[int]]:
    """(events, sizes) of a tensor that is copied into one 64 MiB larger, again and again, as a KV cache grows."""
    events = [0]
    for number in range(1, STEPS):
        events += [number, ~(number - 1)]
    return events, [64 * MIB * (number + 1) for number in range(STEPS)]


def test_a_cache_that_grows_needs_no_more_than_a_gpu_that_holds_it() -> None:
    events, sizes = growing()
    replayed = partial(replay, events, None, sizes)
    unlimited = replayed(UNLIMITED)
    live = unlimited.peak_allocated_bytes
    assert unlimited.peak_reserved_bytes > 4 * live
    run, fits, _ = settle(0, (live // 2, live // 2), replayed)
    assert not fits
    assert live <= run.peak_reserved_bytes < 1.3 * live
    assert run.num_retries
    assert not replayed(run.peak_reserved_bytes).out_of_memory


def test_what_is_not_mostly_cached_is_that_of_an_unlimited_gpu() -> None:
    replayed = partial(replay, [0, 1, 2, ~1, ~2, ~0], None, [300 * MIB, 200 * MIB, 100 * MIB])
    run, fits, _ = settle(0, (MIB, MIB), replayed)
    assert not fits
    assert run.num_retries == 0
    assert run.peak_reserved_bytes == replayed(UNLIMITED).peak_reserved_bytes
