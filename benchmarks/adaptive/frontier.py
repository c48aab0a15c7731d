"""Policies against the frontier of fixed batches, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A fixed batch or a policy; means over the seeds, and standard deviations of the differences."""

    title: str
    kind: str
    """fixed, or policy."""
    rate: float
    loss: float
    steps: float
    fewer_steps: float
    """Share of the first batch's."""
    above_first: float
    """Loss above that of the first batch with the same seed, as a share."""
    above_first_deviation: float
    above_frontier: float
    """Loss above what fixed batches reach in as many steps, between two of them by the logarithm of the steps."""
    above_frontier_deviation: float


def read(path: Path) -> list[dict[str, Any]]:
    """The results of a task."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Fixed batches first, then policies, in the order of the runs."""
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for result in results:
        if result["kind"] != "tuning":
            runs.setdefault(result["title"], {})[result["seed"]] = result
    fixed = [by_seed for by_seed in runs.values() if by_seed[0]["kind"] == "fixed"]
    frontier = {seed: [(one[seed]["steps"], one[seed]["loss"]) for one in fixed] for seed in fixed[0]}
    found = []
    for title, by_seed in runs.items():
        first = [run["loss"] / fixed[0][seed]["loss"] - 1 for seed, run in by_seed.items()]
        above = [run["loss"] / at(frontier[seed], run["steps"]) - 1 for seed, run in by_seed.items()]
        steps = mean(run["steps"] for run in by_seed.values())
        found.append(
            Row(
                title=title,
                kind=by_seed[0]["kind"],
                rate=by_seed[0]["rate"],
                loss=mean(run["loss"] for run in by_seed.values()),
                steps=steps,
                fewer_steps=1 - steps / fixed[0][0]["steps"],
                above_first=mean(first),
                above_first_deviation=stdev(first),
                above_frontier=mean(above),
                above_frontier_deviation=stdev(above),
            )
        )
    return found


def at(frontier: Sequence[tuple[int, float]], steps: float) -> float:
    """The loss of fixed batches at so many steps; beyond their ends, that of the end."""
    points = sorted(frontier)
    if steps >= points[-1][0]:
        return points[-1][1]
    if steps <= points[0][0]:
        return points[0][1]
    for (fewer, above), (more, below) in pairwise(points):
        if steps <= more:
            share = log(steps / fewer) / log(more / fewer)
            return above + share * (below - above)
    raise AssertionError


def table(found: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| | loss | steps | fewer steps | loss against the first batch | against fixed batches in as many steps |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        against_first = _share(row.above_first, row.above_first_deviation)
        against_frontier = "" if row.kind == "fixed" else _share(row.above_frontier, row.above_frontier_deviation)
        fewer = f"{row.fewer_steps:.0%}" if row.fewer_steps else ""
        first = against_first if row.fewer_steps else ""
        lines.append(f"| {row.title} | {row.loss:.3f} | {row.steps:,.0f} | {fewer} | {first} | {against_frontier} |")
    return "\n".join(lines) + "\n"


def _share(share: float, deviation: float) -> str:
    return f"{share:+.1%} ± {deviation:.1%}"
