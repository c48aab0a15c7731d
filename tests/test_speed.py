"""Published training speeds as jobs, and how they are compared with estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import cli
from vramplan.errors import ConfigError
from vramplan.measurements import speed
from vramplan.measurements.speed import SpeedRow, compare_times, orders, speed_row, speed_summary
from vramplan.measurements.timed_run import TimedRun, load_times
from vramplan.render import speed as render

TIMES = Path(__file__).parent / "published_times.jsonl"
LINE: dict[str, Any] = {
    "id": "one",
    "group": "paper",
    "source": "a page",
    "grade": "A",
    "model": "Qwen/Qwen2.5-0.5B",
    "gpu": "rtx4090",
    "job": {"method": "full", "sequence_length": 512, "micro_batch_size": 2},
    "nodes": 1,
    "seconds_per_step": 0.5,
    "tokens_per_step": 1024,
}


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "times.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_published_time_names_its_source_and_the_tokens_of_its_job() -> None:
    """Tokens of a step are the global batch times the length."""
    runs = load_times(TIMES)
    assert len(runs) > 500
    for run in runs:
        job = run.job
        samples = job["micro_batch_size"] * job.get("gradient_accumulation_steps", 1) * run.num_gpus
        assert run.tokens_per_step == samples * job["sequence_length"], run.id
        assert run.source, run.id
        assert run.num_gpus % run.nodes == 0, run.id


@pytest.mark.parametrize("group", sorted({run.group for run in load_times(TIMES)}))
def test_published_times_can_be_estimated(group: str) -> None:
    """The first, the last and the middle row of each group; `vramplan accuracy --times` estimates all."""
    runs = [run for run in load_times(TIMES) if run.group == group]
    for run in {runs[0].id: runs[0], runs[len(runs) // 2].id: runs[len(runs) // 2], runs[-1].id: runs[-1]}.values():
        row = speed_row(run)
        assert 0.05 < row.predicted_seconds / row.measured_seconds < 20, run.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds_per_step": 0}, "line 2 is not a timed run (seconds_per_step"),
        ({"seconds_per_step": float("inf")}, "line 2 is not a timed run"),
        ({"job": {"sequence_lenght": 1}}, "did you mean sequence_length?"),
        ({"gpu_changes": {"bandwith": 1}}, "bandwith: no such field of a GPU"),
        ({"model": None}, "give model or config"),
        ({"model": None, "config": {}}, "config has no model_type"),
        ({"grade": "D"}, "grade"),
        ({"note": "x"}, "note"),
        ({}, "line 2 repeats the id one"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    other = LINE | ({"id": "two"} if change else {}) | change
    with pytest.raises(ConfigError) as error:
        load_times(write(tmp_path, LINE, other))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_file_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no timed run"):
        load_times(write(tmp_path))


def row(run: str, measured: float, predicted: float, complete: bool = True, tokens: int = 1024) -> SpeedRow:
    return SpeedRow(run, "paper", "A", complete, tokens, measured, predicted)


def test_summary_of_errors() -> None:
    """Of 20 rows the nearest rank of 95 % is the 19th: the worst is left out."""
    errors = [0.01 * number for number in range(1, 20)] + [-0.9]
    summary = speed_summary(row("", 1.0, 1.0 + error) for error in errors)
    assert summary.count == 20
    assert summary.median == pytest.approx(0.105)
    assert summary.p95 == pytest.approx(0.19)
    assert summary.signed_median == pytest.approx(0.095)


def test_only_clear_differences_between_plans_of_the_same_gpus_are_ordered() -> None:
    """Times of a token are compared; 4 % apart, another GPU, or a setting that is not known make no pair."""
    slow = {"micro_batch_size": 1}
    runs = [
        TimedRun.model_validate(LINE | {"id": name} | changes)
        for name, changes in {
            "two": {},
            "one": {"job": LINE["job"] | slow, "tokens_per_step": 512},
            "near": {"job": LINE["job"] | {"checkpointing": "none"}},
            "card": {"job": LINE["job"] | slow, "gpu": "rtx3090"},
            "part": {"job": LINE["job"] | slow, "unknown": ["lengths"]},
        }.items()
    ]
    rows = {
        "two": row("two", 1.0, 1.0),
        "one": row("one", 0.7, 0.7, tokens=512),  # 1.4 times as long for a token
        "near": row("near", 0.96, 1.3),  # 4 % from "two", but clearly faster than "one"
        "card": row("card", 9.0, 0.1),
        "part": row("part", 9.0, 0.1, complete=False),
    }
    found = orders(runs, rows)
    assert found["paper"].pairs == 2
    assert found["paper"].right == 2
    rows["one"] = row("one", 0.7, 0.6, tokens=512)  # 1.2 for a token: still slower than "two", faster than "near"
    assert orders(runs, rows)["paper"].right == 1


def test_rows_that_differ_in_their_batch_share_a_simulation(tmp_path: Path) -> None:
    """The same numbers as one by one."""
    lines = [
        LINE | {"id": str(size), "job": LINE["job"] | {"micro_batch_size": size}, "tokens_per_step": 512 * size}
        for size in (1, 2, 8)
    ]
    together = compare_times(write(tmp_path, *lines))
    assert [found.run for found in together.rows] == ["1", "2", "8"]
    for line, found in zip(lines, together.rows, strict=True):
        assert speed_row(TimedRun.model_validate(line)).predicted_seconds == pytest.approx(found.predicted_seconds)


def test_a_run_that_cannot_be_estimated_is_named(tmp_path: Path) -> None:
    other = LINE | {"id": "two", "job": LINE["job"] | {"strategy": "fsdp"}}
    speeds = compare_times(write(tmp_path, LINE, other))
    assert [found.run for found in speeds.rows] == ["one"]
    assert speeds.left_out[0].startswith("two: ")


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    path = write(tmp_path, LINE, LINE | {"id": "two", "unknown": ["torch.compile"]})
    printed = cli("accuracy", "--times", str(path), "--markdown")
    assert printed.returncode == 0
    assert printed.stdout.startswith("| group | settings |")
    assert "| paper | all known | 1 |" in printed.stdout
    assert "| paper | some unknown | 1 |" in printed.stdout
    assert "paper: torch.compile" in cli("accuracy", "--times", str(path)).stdout
    narrow = cli("accuracy", "--times", str(path), COLUMNS="40").stdout
    assert "paper, settings: some unknown" in narrow
    assert max(map(len, narrow.splitlines())) <= 40


def test_json_is_refused(tmp_path: Path) -> None:
    printed = cli("accuracy", "--times", str(write(tmp_path, LINE)), "--json")
    assert printed.returncode == 2
    assert "--json" in printed.stderr


def test_shares_of_the_table() -> None:
    speeds = speed.Speeds((row("a", 1.0, 1.1), row("b", 1.0, 0.8)), {"paper": speed.Order(4, 3)}, {})
    assert render.lines(speeds)[0] == ["all groups", "all known", "2", "15.0%", "20.0%", "-5.0%", "4", "75.0%"]
