"""Estimates beside published and emulated runs, and memory outside PyTorch by GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import vramplan
from tests import learn
from tests.helpers import card_of, cli
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.measurements.accuracy import Verdict, published_verdict
from vramplan.measurements.emulated import compare_emulated, load_emulated
from vramplan.measurements.published import Published
from vramplan.memory.calibration import context, group_of
from vramplan.memory.overheads import nccl_bytes
from vramplan.render.accuracy import confusion
from vramplan.units import GiB, MiB

ROW: dict[str, Any] = {
    "id": "a", "group": "b", "source": "c", "grade": "A", "model": "Qwen/Qwen2.5-0.5B", "gpu": "rtx3060",
    "job": {"micro_batch_size": 1, "sequence_length": 512}, "metric": "device",
}  # fmt: skip


# -- published runs ----------------------------------------------------------------------------------------------------


def test_a_run_without_a_measurement_ran_out_of_memory() -> None:
    assert Published.model_validate({**ROW, "outcome": "oom"}).measured_bytes is None
    assert Published.model_validate({**ROW, "measured_bytes": 1}).outcome == "ok"
    for wrong in ({}, {"outcome": "oom", "measured_bytes": 1}):
        with pytest.raises(ValueError, match="a run that ran has measured_bytes"):
            Published.model_validate({**ROW, **wrong})


def test_verdicts_of_published_runs() -> None:
    """A verdict without a second replay says the same as an estimate with the margin."""
    for batch, fits in ((1, True), (64, False)):
        run = Published.model_validate({**ROW, "outcome": "oom", "job": {**ROW["job"], "micro_batch_size": batch}})
        found = published_verdict(run, "analytic", run.estimate())
        assert (found.said, found.ran) == (fits, False)
        assert found.said == run.estimate(confidence=0.9).fits


def test_a_table_of_right_and_wrong_verdicts() -> None:
    said = ((True, True), (False, True), (False, False))
    verdicts = [Verdict("", "", fits, ran, said_without_margin=True) for fits, ran in said]
    assert list(confusion(verdicts, True).values()) == [1, 0, 1, 1]
    assert list(confusion(verdicts, False).values()) == [2, 1, 0, 0]


def test_runs_that_ran_out_of_memory_are_not_said_to_fit() -> None:
    """The worst mistake: one is known, a job that LitGPT's table puts on four GPUs and its text on one."""
    wrong = re.search(r"Wrongly said to fit: (\d+) of (\d+) published runs", learn.PAGE.read_text())
    assert wrong
    assert int(wrong[1]) <= 1
    assert int(wrong[2]) >= 34


# -- outside PyTorch ---------------------------------------------------------------------------------------------------


def test_contexts_by_threads_meet_the_messages() -> None:
    sizes: dict[str, list[int]] = {}
    for line in learn.OUTSIDE.read_text().splitlines():
        one = json.loads(line)
        if one["ranks"] == 1:
            sizes.setdefault(one["gpu"], []).append(one["used_bytes"] - one["reserved_bytes"])
    assert len(sizes) >= 7
    for name, seen in sizes.items():
        found = context(card_of(name))
        assert found is not None
        assert abs(found[0] - median(seen)) < 90 * MiB, name


def test_a_context_grows_with_the_gpu() -> None:
    by_gpu = {name: vramplan.estimate("Qwen/Qwen2.5-0.5B", name) for name in ("t4", "rtx3090", "rtx5090")}
    outside = [found.device_total_bytes - found.peak_reserved_bytes for found in by_gpu.values()]
    assert outside == sorted(outside)
    assert outside[0] < 200 * MiB < 500 * MiB < outside[-1]


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "mib"),
    [("a100", 1, 0), ("a100", 2, 544), ("a100", 8, 688), ("rtx4090", 8, 128), ("mi300x", 8, 1024)],
)
def test_nccl_depends_on_the_link(gpu: str, num_gpus: int, mib: int) -> None:
    assert nccl_bytes(Job(num_gpus=num_gpus), card_of(gpu)) == mib * MiB


@pytest.mark.parametrize(
    ("job", "group"),
    [({}, "one"), ({"num_gpus": 2}, "several"), ({"strategy": "zero3"}, "zero"),
     ({"num_gpus": 2, "strategy": "fsdp"}, "fsdp"), ({"num_gpus": 2, "strategy": "device_map"}, "several")],
)  # fmt: skip
def test_groups_of_jobs(job: dict[str, Any], group: str) -> None:
    assert group_of(Job(**job)) == group


# -- emulated GPUs -----------------------------------------------------------------------------------------------------


def emulated_file(folder: Path, **change: Any) -> Path:
    job = {"micro_batch_size": 2, "sequence_length": 512}
    found = vramplan.estimate(ROW["model"], "rtx4090", confidence=0.0, **job)
    row = {
        "model": ROW["model"], "gpu": "rtx4090", "job": job, "allocated_bytes": found.peak_allocated_bytes,
        "reserved_bytes": round(found.peak_reserved_bytes * 1.01), "torch": "2.13.0",
    }  # fmt: skip
    file = folder / "emulated.jsonl"
    file.write_text(json.dumps(row | change) + "\n" + json.dumps(row | {"gpu": "a100"}) + "\n")
    return file


def test_emulated_runs_by_kind(tmp_path: Path) -> None:
    found = compare_emulated(emulated_file(tmp_path))
    first = found.runs[0]
    assert first.labels["compute capability"] == "8.9"
    assert [round(row.error, 3) for row in first.rows] == [0.0, -0.010]
    assert all(run.said and run.ran for run in found.runs)
    (tmp_path / "empty.jsonl").touch()
    done = cli("accuracy", "--emulated", str(tmp_path / "empty.jsonl"))
    assert (done.returncode, done.stderr.endswith("empty.jsonl: no run on an emulated GPU is in it\n")) == (2, True)
    done = cli("accuracy", "--emulated", str(tmp_path / "emulated.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "Of 2 runs (PyTorch 2.13.0) 0 wrongly fit and 0 wrongly do not." in done.stdout
    for words, message in (
        (("--by", "foo"), "unknown estimator"),
        (("--by", "trace"), "--by is for --ledger"),
    ):
        refused = cli("accuracy", "--emulated", str(tmp_path / "emulated.jsonl"), *words)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert message in refused.stderr
    text = cli("accuracy", "--emulated", str(tmp_path / "emulated.jsonl"), "--markdown").stdout
    assert "| all runs |  | 2 | 0.00% |" in text
    assert "| compute capability | 8.9 | 1 |" in text


def test_searches_on_emulated_gpus(tmp_path: Path) -> None:
    (search,) = compare_emulated(emulated_file(tmp_path, largest_micro_batch=3)).searches
    assert search.chosen > search.largest == 3
    assert search.chosen * 0.1 * GiB < 24 * GiB


def test_a_bad_line_of_emulated_runs(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"runs.jsonl: line 1 is not a run on an emulated GPU"):
        load_emulated(file)
