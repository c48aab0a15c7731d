"""The evidence for policies: what was committed says what the guide says, and what is quick is measured again."""

from __future__ import annotations

import json

import pytest

from tests.helpers import ROOT, cli

RESULTS = ROOT / "benchmarks" / "adaptive" / "results"
GUIDE = ROOT / "docs" / "guides" / "batch-that-grows.md"


def test_the_estimator_is_within_5_percent_of_known_noise() -> None:
    """Wherever it says itself that it is sure; where it does not, the results say so too."""
    rows = json.loads((RESULTS / "estimator.json").read_text())
    assert len(rows) == 24
    sure = [row for row in rows if row["relative_std"] < 0.02]
    assert len(sure) >= 18
    assert all(abs(row["error"]) <= 0.05 for row in sure)
    unsure = [row for row in rows if row not in sure]
    assert all(row["steps"] == 20_000 for row in unsure)
    assert all(abs(row["error"]) <= 4 * row["relative_std"] for row in unsure)


def test_the_batch_on_a_quadratic_is_within_twice_the_optimum() -> None:
    rows = json.loads((RESULTS / "quadratic.json").read_text())
    alike = [row for row in rows if row["hessian"] == "all curvatures alike"]
    assert len(alike) == 5
    assert all(row["share_within_twice"] > 0.95 for row in alike)


def test_the_quadratic_again() -> None:
    pytest.importorskip("torch")
    from benchmarks.adaptive import quadratic

    row = quadratic._measure("all curvatures alike", seed=17)
    assert row["share_within_twice"] > 0.9
    assert row["largest"] < 2


@pytest.mark.parametrize("task", ["from_scratch", "fine_tuning"])
def test_the_guide_has_the_results(task: str) -> None:
    from benchmarks.adaptive.frontier import read, rows, table

    results = read(RESULTS / f"{task}.jsonl")
    text = table(rows(results))
    assert (RESULTS / f"{task}.md").read_text() == text
    assert text in GUIDE.read_text()
    assert {result["seed"] for result in results} == {0, 1, 2}


def test_the_simulation_in_the_guide_is_what_is_printed() -> None:
    done = cli("adapt", "simulate", "benchmarks/adaptive/results/from_scratch_record.jsonl", "--global-batch", "8")
    assert done.returncode == 0, done.stderr
    shown = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert shown in GUIDE.read_text()


def test_the_frontier_is_interpolated_by_the_logarithm_of_steps() -> None:
    from benchmarks.adaptive.frontier import at

    points = [(400, 1.0), (100, 2.0), (25, 4.0)]
    assert [at(points, steps) for steps in (1000, 400, 200, 100, 50, 25, 1)] == [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.0]
