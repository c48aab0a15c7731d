"""How long the passes over a step's events take, compiled beside plain Python, and whether their results are the same.

Run: ``python benchmarks/passes.py``. Both run in this process, in turns: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import vramplan
from vramplan.memory import passes
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings
from vramplan.memory.replay import replay
from vramplan.units import MiB

STEPS = (("qwen2.5-7b", "lora"), ("qwen2.5-7b", "full"), ("mixtral-8x7b-v0.1", "lora"), ("llama-3.1-70b", "qlora"))
SETTINGS = {
    "defaults": AllocatorSettings(),
    "expandable segments": AllocatorSettings(expandable_segments=True),
    "max_split_size 32 MiB": AllocatorSettings(max_split_size=32 * MiB),
    "roundup_power2_divisions 4": AllocatorSettings(roundup_power2_divisions=4),
}
TURNS = 5


def main() -> None:
    if passes.compiled is None:
        sys.exit(f"nothing to compare: {passes.describe()}")
    for model, method in STEPS:
        timeline = vramplan.estimate(model, "h200", method=method).timeline
        assert timeline is not None
        step = (timeline.events, timeline.kind_of, timeline.kinds.sizes)
        print(f"{model} {method}: {len(timeline.events):,} events, {len(timeline.kinds)} kinds of storages")
        for name, settings in SETTINGS.items():
            reserved = replay(*step, settings=settings).peak_reserved_bytes
            for limit, capacity in (("", UNLIMITED), (", 97 % of the memory", reserved * 97 // 100)):
                served = len(replay(*step, capacity, settings).allocated)
                compare(f"replay, {name}{limit}", served, replay, *step, capacity, settings)
        everything = len(timeline.events)
        compare("live_bytes", everything, passes.live_bytes, *step)
        compare("peak_bytes", everything, passes.peak_bytes, *step)
        compare("live_at", everything, passes.live_at, step[0], everything - 1)
        compare("shifted", everything, passes.shifted, step[0], 1000)
        compare("selected", everything, passes.selected, step[0], bytes(len(timeline.kind_of)))


def compare(name: str, num_events: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Print nanoseconds an event and the ratio, of the quickest turns."""
    library, best, results = passes.compiled, [float("inf"), float("inf")], [None, None]
    for _ in range(TURNS):
        for turn, passes.compiled in enumerate((library, None)):
            start = time.perf_counter()
            results[turn] = function(*arguments)
            best[turn] = min(best[turn], time.perf_counter() - start)
    passes.compiled = library
    if results[0] != results[1]:
        sys.exit(f"{name}: the results differ")
    compiled, python = (seconds / num_events * 1e9 for seconds in best)
    print(f"  {python / compiled:6.1f} x  {compiled:6.1f} ns an event, {python:7.1f} in Python  {name}")


if __name__ == "__main__":
    main()
