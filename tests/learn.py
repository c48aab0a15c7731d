"""What runs teach: ``vramplan/memory/calibration.json``, and the tables of runs in ``docs/accuracy.md``.

``python -m tests.learn`` writes both, from

- ``tests/measured/``, the ledger of our own runs,
- ``tests/published.jsonl``, runs that others have published,
- ``tests/outside.jsonl``, what processes held beyond PyTorch's reserved memory, by PyTorch's own message when they ran
  out of memory: "this process has ... in use", less what was allocated and what was reserved but unallocated,
- ``tests/emulated.jsonl``, runs on emulated GPUs,
- ``tests/other_estimators.json``, what other estimators say of the same runs (``python -m tests.other_estimators``).

Published rows judge the estimates; nothing is fitted to single rows: each publication counts as much as each other, and
a publication with fewer than three rows teaches nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Any

from tests.accuracy_page import PAGE, in_page
from tests.emulated import ROWS
from tests.helpers import ROOT
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.job import Job
from vramplan.measurements import accuracy, ledger
from vramplan.measurements.emulated import compare_emulated
from vramplan.measurements.published import Published, load_published
from vramplan.memory import calibration
from vramplan.memory.estimate import Estimate
from vramplan.memory.overheads import nccl_bytes, outside_bytes
from vramplan.units import GiB

LEDGER = ROOT / "tests" / "measured"
PUBLISHED = ROOT / "tests" / "published.jsonl"
OUTSIDE = ROOT / "tests" / "outside.jsonl"
LEARNED = ROOT / "vramplan" / "memory" / "calibration.json"
LEAST_RUNS = 3
"""Fewer runs of a publication teach nothing."""


def counts(one: Published) -> bool:
    """Published runs of equal lengths, computed as estimated, of which more than the allocated peak is known."""
    return one.outcome == "ok" and one.fixed_lengths and not one.own_kernels and one.metric != "allocated"


def learn_context(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a context holds, by the threads that a GPU runs at once, from messages of single processes.

    The median of the messages of each GPU; among GPUs the median of all slopes (Theil and Sen), which single GPUs do
    not move.
    """
    by_gpu = defaultdict(list)
    for one in messages:
        if one["ranks"] == 1:
            by_gpu[one["gpu"]].append(one["used_bytes"] - one["reserved_bytes"])
    points = []
    for name, sizes in by_gpu.items():
        gpu = find_gpu(name)
        assert gpu.multiprocessors is not None
        points.append((gpu.multiprocessors * gpu.threads_per_multiprocessor, median(sizes)))
    slope = median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0])
    base = median(size - slope * threads for threads, size in points)
    return {"bytes": round(base), "bytes_per_thread": round(slope, 1), "messages": sum(map(len, by_gpu.values()))}


def beyond_estimate(messages: Sequence[dict[str, Any]], context: dict[str, Any]) -> list[int]:
    """Memory outside of PyTorch, less its estimate, of each message."""
    excess = []
    for one in messages:
        gpu = find_gpu(one["gpu"])
        assert gpu.multiprocessors is not None
        threads = gpu.multiprocessors * gpu.threads_per_multiprocessor
        estimated = context["bytes"] + context["bytes_per_thread"] * threads
        estimated += nccl_bytes(Job(num_gpus=one["ranks"]), gpu)
        excess.append(round(one["used_bytes"] - one["reserved_bytes"] - estimated))
    return sorted(excess)


def learn() -> dict[str, Any]:
    """Contexts by GPU, and how far runs exceed their estimate."""
    messages = [json.loads(line) for line in OUTSIDE.read_text().splitlines()]
    context = learn_context(messages)
    contexts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for one in ledger.load_all(LEDGER):
        if one.outcome != "ok" or not one.is_of_gpu:
            continue
        try:
            found: Estimate | None = accuracy.estimate(one, "analytic", confidence=0.0)
        except VramplanError:
            found = None
        measured = one.device_total_bytes
        if measured is not None and one.environment.cap_bytes is None and one.job.num_gpus == 1:
            assert one.context_bytes is not None
            contexts[find_gpu(one.card).name].append((one.context_bytes, str(one.environment.driver)))
        if found is not None and measured is not None:
            ratios[calibration.group_of(one.job)].append(round(measured / found.device_total_bytes, 4))
    return {
        "contexts": {
            name: {"bytes": int(median(size for size, _ in seen)), "runs": len(seen), "driver": seen[-1][1]}
            for name, seen in sorted(contexts.items())
        },
        "context": context,
        "outside": beyond_estimate(messages, context),
        "ledger": {group: sorted(found) for group, found in sorted(ratios.items())},
    }


def learn_published() -> dict[str, dict[str, list[list[float]]]]:
    """By group and publication, how far each run exceeds its estimate; see :func:`calibration.facts`."""
    learned: dict[str, dict[str, list[list[float]]]] = {}
    for one in load_published(PUBLISHED):
        if not counts(one):
            continue
        assert one.measured_bytes is not None
        predicted = one.estimate()
        outside = 0 if one.metric == "reserved" else outside_bytes(predicted.job, find_gpu(one.gpu))
        ratio = (one.measured_bytes - outside) / predicted.peak_reserved_bytes
        per_gib = 0.0 if one.metric == "reserved" else GiB / predicted.peak_reserved_bytes
        group = learned.setdefault(calibration.group_of(predicted.job), {})
        group.setdefault(one.group, []).append([round(ratio, 4), round(per_gib, 5)])
    enough = {
        group: {name: sorted(runs) for name, runs in sorted(found.items()) if len(runs) >= LEAST_RUNS}
        for group, found in sorted(learned.items())
    }
    return {group: found for group, found in enough.items() if found}


def dumps(learned: dict[str, Any]) -> str:
    """As the file holds it."""
    return json.dumps(learned, indent=1) + "\n"


def forget() -> None:
    """Let the next estimate read the file again."""
    calibration.facts.cache_clear()
    calibration.margin.cache_clear()


def main() -> None:
    """Write what runs teach, and the page."""
    first = learn()
    held = json.loads(LEARNED.read_text())
    LEARNED.write_text(dumps({**held, **first}))
    forget()  # the context is part of the estimates that published runs are compared with
    LEARNED.write_text(dumps({**first, "published": learn_published()}))
    forget()
    PAGE.write_text(in_page(PAGE.read_text(), compare_emulated(ROWS)))


if __name__ == "__main__":
    main()
