"""Timelines on which the compiled passes are compared with the ones in Python: random, malformed, and of real steps."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import vramplan
from vramplan.errors import VramplanError
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings
from vramplan.memory.replay import Replay, replay_in_python
from vramplan.memory.timeline import NO_STREAM
from vramplan.units import KiB, MiB

EDGES = (
    0, 1, 511, 512, 513, 1536, MiB - 1, MiB, MiB + 1, 2 * MiB, 10 * MiB - 1, 10 * MiB, 20 * MiB, 21 * MiB, 100 * MiB,
)  # fmt: skip
"""Sizes around the allocator's thresholds."""
HUGE = (-1, 1 << 50, 1 << 51, (1 << 60) - 1, 1 << 60, (1 << 60) + 1, (1 << 63) - 1, 1 << 63)
"""Sizes around the bounds of the passes, and around all the addresses of an expandable segment."""


class Events(NamedTuple):
    """A timeline as the passes see it."""

    events: array[int]
    kinds: array[int]
    sizes: array[int]
    streams: list[int] | None

    def replayed(self, capacity: int, settings: AllocatorSettings) -> Replay:
        """The referee's replay."""
        return replay_in_python(*self[:3], capacity, settings, False, self.streams, True)


def random_settings(choose: random.Random) -> AllocatorSettings:
    """Any options of the allocator, one of two by default."""
    return AllocatorSettings(
        expandable_segments=choose.random() < 0.5,
        max_split_size=choose.choice((UNLIMITED, UNLIMITED, 60 * MiB, 40 * MiB, 21 * MiB, 20 * MiB, 0)),
        max_non_split_rounding=choose.choice((20 * MiB, MiB, 0)),
        roundup_power2_divisions=choose.choice((0, 0, 1, 2, 3, 4, 8, 1 << 60)),
    )


def random_events(choose: random.Random, longest: int = 1500) -> Events:
    """Few or many kinds, much or little alive at a time, on one stream or several."""
    kinds, events, live = array("i"), array("i"), []
    comb = choose.random() < 0.2  # many free blocks of one size, between others that are in use
    sizes = array("q", [64 * KiB, 128 * KiB, 192 * KiB] if comb else _sizes(choose))
    stays = choose.uniform(0.3, 0.7)
    if comb:
        live = list(range(0, 200, 2))
        kinds.extend([0] * 200)
        events.extend(range(200))
        events.extend(choose.sample(range(-200, 0, 2), 100))
    for _ in range(choose.randrange(10, longest)):
        if not live or choose.random() < stays:
            live.append(len(kinds))
            events.append(len(kinds))
            kinds.append(choose.randrange(len(sizes)))
        else:
            events.append(~live.pop(choose.choice((0, -1, choose.randrange(len(live))))))
        if choose.random() < 0.004:
            choose.shuffle(live)
            events.extend([~live.pop() for _ in range(choose.randrange(len(live) + 1))])
        if live and choose.random() < 0.002:  # a storage that is allocated once more
            again = live.pop()
            events.extend((~again, again, ~again))
    streams = [choose.choice((0, 0, 0, 1, 7)) for _ in sizes] if choose.random() < 0.5 else None
    if streams and choose.random() < 0.3:  # kinds whose allocation empties the cache
        streams[choose.randrange(len(sizes))] = NO_STREAM
    return Events(events, kinds, sizes, streams)


def _sizes(choose: random.Random) -> list[int]:
    draw: Callable[[], int] = choose.choice(
        (
            lambda: choose.choice((choose.choice(EDGES), choose.randrange(64 * MiB), choose.randrange(4 * KiB))),
            lambda: int(2 ** choose.uniform(0, 28)),
            lambda: choose.choice((choose.randrange(MiB), choose.randrange(MiB, 200 * MiB))),
            lambda: max(0, choose.choice(EDGES) + choose.randrange(-2, 3)),
            *2 * [lambda: 10 * MiB * choose.randrange(1, 9)],  # whole pages of expandable segments, or half
        )
    )
    return [draw() for _ in range(choose.choice((1, 4, 30, 800)))]


def capacities(choose: random.Random, whole: Replay) -> list[int]:
    """No limit, then from just enough to too little: cached segments are released, and nothing helps."""
    low, high = whole.peak_allocated_bytes, whole.peak_reserved_bytes
    between = [choose.randrange(low // 2, high + 1) for _ in range(2)]
    return [UNLIMITED, high, high - 1, (low + high) // 2, low, *between]


def malformed_events(choose: random.Random) -> Events:
    """A short timeline of which anything may be wrong."""
    num_storages, num_kinds = choose.randrange(5), choose.randrange(4)
    events, live = array("i"), set()
    for _ in range(choose.randrange(14)):
        if choose.random() < 0.05:
            events.append(choose.choice((choose.randrange(-7, 7), -(1 << 31), (1 << 31) - 1)))
        elif num_storages:
            number = choose.randrange(num_storages)
            events.append(~number if number in live else number)
            live ^= {number}
    kinds = [choose.randrange(max(num_kinds, 1)) if choose.random() < 0.98 else choose.randrange(-2, 9)] * num_storages
    sizes = [choose.choice(HUGE[1:5] if choose.random() < 0.1 else EDGES) for _ in range(num_kinds)]
    if sizes and choose.random() < 0.1:
        sizes[0] = choose.choice(HUGE[:-1])
    streams = [
        choose.choice((0, 5, 1023, NO_STREAM)) if choose.random() < 0.99 else choose.choice((-2, 1024))
        for _ in range(num_kinds + (choose.random() < 0.05))
    ]
    return Events(events, array("i", kinds), array("q", sizes), streams if choose.random() < 0.5 else None)


MODELS = (
    "qwen2.5-7b", "llama-3.1-8b", "gemma-2-9b", "mistral-7b-v0.3", "phi-3.5-mini-instruct", "gpt2-xl", "opt-1.3b",
    "mixtral-8x7b-v0.1", "qwen2.5-vl-7b-instruct", "bert-base-uncased", "t5-base", "smollm2-135m",
)  # fmt: skip
JOBS: tuple[dict[str, Any], ...] = (
    {"method": "full", "strategy": "zero3", "num_gpus": 8},
    {"method": "lora"},
    {"method": "full", "strategy": "fsdp", "num_gpus": 4},
    {"method": "full", "micro_batch_size": 4, "gradient_accumulation_steps": 2},
    {"method": "qlora"},
    {"method": "lora", "checkpointing": "none"},
    {"method": "full", "optimizer": "adamw_torch"},
)


def real_cases() -> list[tuple[str, dict[str, Any]]]:
    """50 pairs of a shipped model and a job, every model and every job among them."""
    pairs = [(MODELS[(i + i // 12) % 12], JOBS[i % 7]) for i in range(84)]
    return pairs[:50]


def real_events(model: str, job: dict[str, Any]) -> Events | None:
    """The step of a model, or None if the job does not go with it."""
    try:
        timeline = vramplan.estimate(model, "h200", **job).timeline
    except VramplanError:
        return None
    assert timeline is not None
    kinds = timeline.kinds
    return Events(timeline.events, timeline.kind_of, kinds.sizes, kinds.streams)


def pass_arguments(choose: random.Random, case: Events) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Arguments for every pass but replay, which a hundredth of the time are out of range."""
    events, kinds, sizes, _ = case

    def draw(low: int, high: int) -> int:
        return choose.randrange(low, high) if choose.random() < 0.998 else choose.randrange(-3, high + 3)

    count = len(events)
    yield "live_bytes", (events, kinds, sizes)
    yield "peak_bytes", (events, kinds, sizes)
    groups = array("i", [draw(0, 3) for _ in sizes])
    at = array("q", sorted(draw(0, max(count, 1)) for _ in range(choose.randrange(6))))
    if choose.random() < 0.02:
        at.reverse()
    yield "live_by_group", (events, kinds, sizes, groups, choose.choice((3, 3, 3, 9, 0, -1, 1 << 70)), at)
    yield "live_at", (events, draw(-1, max(count, 1)))
    yield "shifted", (events, choose.choice((0, 5, 7, -2, 1 << 30, (1 << 31) - 1, 1 << 70, -(1 << 70))))
    bases = choose.choice(([0, 5], [3, 3, 9], [7, 1 << 31], [0, 1 << 62], [0, -(1 << 62)], [-1, 2], [0]))
    yield "relocated", (events, array("i", [draw(0, 2) for _ in range(count - (choose.random() < 0.02))]), bases)
    flags = bytes(choose.randrange(3) % 2 for _ in range(len(kinds) - (choose.random() < 0.02)))
    yield "selected", (events, flags)
    numbers = array(
        "i",
        [choose.choice((-1, -9, choose.randrange(1 << 31))) for _ in range(max(0, draw(len(kinds), len(kinds) + 1)))],
    )
    yield "renumbered", (events, numbers, choose.choice((0, 9, 9, -1, (1 << 31) - 4, 1 << 31, 1 << 70)))
    levels = array("q", [choose.randrange(-5, 5) for _ in range(count)])
    first = draw(0, max(count, 1))
    yield "highest", (levels, first, draw(first, max(first, count) + 1))
    yield "index_of_highest", (levels, first, draw(first, max(first, count) + 1))
