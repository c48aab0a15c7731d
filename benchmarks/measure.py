"""Measures the subjects in turns."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import large_table
from benchmarks.process import Cost, run
from benchmarks.subjects import COMMANDS, IMPORTS, REPORTS, SEARCHES, Subject, Target

ROUNDS = 9
TABLE_NAME = f"vramplan table, {large_table.CELLS:,} cells"
IMPORTS_NAME = "python -c 'import typer, rich, rich.table, pydantic'"


class Machine(NamedTuple):
    """Where things run."""

    python: str
    folder: Path
    """For what they write."""
    peers: Mapping[str, Sequence[str]]
    """The command line of each peer."""
    environment: Mapping[str, str]


class Figures(NamedTuple):
    """What a subject cost."""

    seconds: float
    """Processor time; the median of several runs."""
    imports: float
    """The same as a multiple of the imports' time; the median of the ratios of each round."""
    peak_bytes: int
    target: Target | None = None
    memory: Target | None = None
    note: str = ""


def measure(machine: Machine, only: str, shares: int) -> dict[str, Figures]:
    """The figures of every subject whose name contains `only`."""
    peers = [Subject(name, rounds=ROUNDS) for name in machine.peers]
    subjects = [each for each in (*COMMANDS, *peers, *SEARCHES, *REPORTS) if only in each.name]
    for subject in subjects:
        if subject.primed:
            _run(machine, subject)
    costs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for number in range(max((subject.rounds for subject in subjects), default=1)):
        base = run([machine.python, "-c", IMPORTS], machine.folder, machine.environment)
        costs[IMPORTS_NAME].append((base.seconds, 1.0, base.peak_bytes))
        for subject in subjects:
            if number < subject.rounds:
                cost = _run(machine, subject)
                costs[subject.name].append((cost.seconds, cost.seconds / base.seconds, cost.peak_bytes))
                print(f"{subject.name}: {cost.seconds:.3f} s", file=sys.stderr)
    targets = {subject.name: (subject.target, subject.memory) for subject in subjects}
    figures = {
        name: Figures(
            median(cost[0] for cost in each),
            median(cost[1] for cost in each),
            max(cost[2] for cost in each),
            *targets.get(name, (None, None)),
        )
        for name, each in costs.items()
    }
    if only in TABLE_NAME:
        figures |= _table(machine, shares, figures[IMPORTS_NAME].seconds)
    return figures


def _run(machine: Machine, subject: Subject) -> Cost:
    """One run of a subject; of a search inside a process, the search alone."""
    environment = {**machine.environment, "VRAMPLAN_CACHE": str(machine.folder / "cache")}
    if not subject.primed:
        environment["VRAMPLAN_NO_CACHE"] = "1"
    if subject.name in machine.peers:
        return run(machine.peers[subject.name], machine.folder, environment)
    if not subject.warm_up:
        return run([machine.python, "-m", "vramplan", *subject.command], machine.folder, environment)
    (search,) = subject.command
    clock = "time.process_time()"
    code = f"import time, vramplan; {subject.warm_up}; start = {clock}; {search}; print({clock} - start)"
    cost = run([machine.python, "-c", code], machine.folder, environment)
    return cost._replace(seconds=float(cost.output.split()[-1]))


def _table(machine: Machine, shares: int, base: float) -> dict[str, Figures]:
    environment = {**machine.environment, "VRAMPLAN_CACHE": str(machine.folder / "table-cache")}
    first, second = large_table.measure([machine.python, "-m", "vramplan"], machine.folder, environment, shares)
    note = f"{shares} times what one of {shares} shares took" if shares > 1 else ""
    return {
        TABLE_NAME: _scaled(first, shares, base, Target(3 * 60 * large_table.CORES, "s"), Target(500, "MiB"), note),
        f"{TABLE_NAME}, again": _scaled(second, shares, base, Target(20, "s"), Target(500, "MiB"), note),
    }


def _scaled(cost: Cost, times: int, base: float, target: Target, memory: Target, note: str) -> Figures:
    seconds = cost.seconds * times
    return Figures(seconds, seconds / base, cost.peak_bytes, target, memory, note)
