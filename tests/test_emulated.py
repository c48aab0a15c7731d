"""Estimates beside what PyTorch's CUDA build allocated on emulated GPUs (tests/emulated.jsonl, tests/emulated.py)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests import emulated, emulated_jobs
from tests.accuracy_page import PAGE, in_page
from vramplan.measurements.emulated import Emulated, compare_emulated

EVERY = 8
"""Of the rows, one in so many is estimated by default; all of them with ``-m full``."""


def check(found: Emulated) -> None:
    """The goals: median, worst, verdicts, largest micro-batches."""
    for metric, median, worst in (("allocated", 0.0001, 0.005), ("reserved", 0.002, 0.02)):
        errors = {run.run.name: abs(row.error) for run in found.runs for row in run.rows if row.metric == metric}
        assert statistics.median(errors.values()) <= median, metric
        for name, error in errors.items():
            assert error <= worst, (metric, name)
    assert all(run.said == run.ran for run in found.runs)
    smaller = [search for search in found.searches if search.chosen < search.largest]
    assert len(smaller) <= max(1, 0.05 * len(found.searches))
    assert all(search.chosen <= search.largest for search in found.searches)
    assert all("mixtures of experts are not modelled on GPUs below" in reason for reason in found.left_out)


def test_some_rows(tmp_path: Path) -> None:
    lines = emulated.ROWS.read_text().splitlines()
    assert len(lines) > 350
    (tmp_path / "some.jsonl").write_text("\n".join(lines[::EVERY]) + "\n")
    check(compare_emulated(tmp_path / "some.jsonl"))


@pytest.mark.full
def test_all_rows_and_the_tables_of_measured_runs() -> None:
    """``python -m tests.learn`` writes the tables of the accuracy page."""
    found, text = compare_emulated(emulated.ROWS), PAGE.read_text()
    check(found)
    assert in_page(text, found) == text


def test_rows_are_jobs_that_were_drawn() -> None:
    """No row is there that was chosen for its result."""
    drawn = {case.name: case for case in (*emulated_jobs.jobs(), *emulated_jobs.searches(), *emulated_jobs.held_out())}
    for line in emulated.ROWS.read_text().splitlines():
        row = json.loads(line)
        assert drawn[row["name"]] == (row["name"], row["model"], row["gpu"], row["job"])
