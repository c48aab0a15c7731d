"""Ledgers from several machines become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import cli, measured_of
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.measurements import ledger
from vramplan.measurements.merge import Merged, merge
from vramplan.memory.measurement import Measured

HISTORY = [("alloc", 512, 100), ("free_completed", 512, 100)]


def run_of(length: int, reserved: int = 20, device: str = "NVIDIA H100 80GB HBM3", **figures: Any) -> Measured:
    run = measured_of(
        Job(sequence_length=length),
        **{"peak_allocated_bytes": 10 << 30, "peak_reserved_bytes": reserved << 30, **figures},
    )
    return run.model_copy(update={"environment": run.environment.model_copy(update={"device": device})})


def test_runs_come_together(tmp_path: Path) -> None:
    a, b, target = tmp_path / "a", tmp_path / "b", tmp_path / "all"
    ledger.save(a, run_of(128), HISTORY)
    ledger.save(a, run_of(256))
    ledger.save(b, run_of(256))
    ledger.save(b, run_of(512, card="rtx4090"))
    assert merge(target, [a, b]) == Merged(3, 0, 1, [])
    runs = {run.job.sequence_length: run for run in ledger.load_all(target)}
    assert set(runs) == {128, 256, 512}
    assert ledger.load_history(target, runs[128]) == HISTORY
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert merge(target, [a, b]) == Merged(0, 0, 4, []), "once more changes nothing"
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_a_file_is_named_after_its_run(tmp_path: Path) -> None:
    path = ledger.save(tmp_path / "a", run_of(128))
    path.rename(path.with_name("copy of a run.json"))
    merge(tmp_path / "all", [tmp_path / "a"])
    assert [each.name for each in (tmp_path / "all").iterdir()] == [path.name]


def test_the_same_run_is_kept_as_measured_last(tmp_path: Path) -> None:
    for folder, day in (("old", 1), ("new", 3), ("all", 2)):
        ledger.save(tmp_path / folder, run_of(128, date=f"2026-02-0{day}"))
    assert merge(tmp_path / "all", [tmp_path / "old", tmp_path / "new"]) == Merged(0, 1, 1, [])
    assert ledger.load_all(tmp_path / "all")[0].date == "2026-02-03"


def test_runs_that_differ_are_left_out_and_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ledger.save(a, run_of(128))
    ledger.save(b, run_of(128, reserved=21, date="2027-01-01", device="NVIDIA A100-SXM4-80GB"))
    ledger.save(a, run_of(256))
    ledger.save(b, run_of(256, outcome="oom", peak_allocated_bytes=None, peak_reserved_bytes=None))
    ledger.save(b, run_of(512))
    merged = merge(tmp_path / "all", [a, b])
    assert merged[:3] == (3, 0, 0)
    assert f"10.000 GiB allocated, 20.000 reserved in {a} (2026-01-31, NVIDIA H100 80GB HBM3" in merged.conflicts[0]
    assert f"10.000 GiB allocated, 21.000 reserved in {b} (2027-01-01, NVIDIA A100-SXM4-80GB" in merged.conflicts[0]
    assert "out of memory in" in merged.conflicts[1]
    assert {run.outcome for run in ledger.load_all(tmp_path / "all")} == {"ok"}
    done = cli("measure", "--out", str(tmp_path / "all"), "--merge", str(a), str(b))
    assert done.returncode == 1
    assert "0 runs added, 0 replaced by later ones, 3 unchanged" in " ".join(done.stdout.split())
    assert "delete one of the two files" in " ".join(done.stdout.split())


def test_runs_of_the_host_stay_apart(tmp_path: Path) -> None:
    ledger.save(tmp_path / "gpu", run_of(128))
    ledger.save(tmp_path / "host", run_of(256, device="cpu"))
    with pytest.raises(ConfigError, match="was measured with device=cpu; runs with device=cuda need a folder"):
        merge(tmp_path / "gpu", [tmp_path / "host"])
    with pytest.raises(ConfigError, match="was measured with device=cuda; runs with device=cpu need a folder"):
        merge(tmp_path / "all", [tmp_path / "host", tmp_path / "gpu"])
    assert not (tmp_path / "all").exists()
    done = cli("measure", "--out", str(tmp_path / "gpu"), "--device", "cpu", "--as-card", "rtx4090")
    assert done.returncode == 2
    assert "was measured with --device cuda; runs with --device cpu need a folder of their own" in done.stderr


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["/nowhere"], "/nowhere: no such folder of measured runs"),
        (["empty"], "empty: holds no measured run"),
        (["good", "broken"], "broken.json: invalid JSON"),
        (["good", "lost"], "cannot be read"),
        (["all"], "all: cannot be merged into itself"),
        ([], "--merge needs the folders whose runs are copied"),
    ],
)
def test_bad_input(tmp_path: Path, folders: list[str], said: str) -> None:
    for name in ("empty", "broken", "all"):
        (tmp_path / name).mkdir()
    ledger.save(tmp_path / "good", run_of(128))
    (tmp_path / "broken" / "broken.json").write_text("{")
    ledger.save(tmp_path / "lost", run_of(256), HISTORY)
    next((tmp_path / "lost").glob("*.gz")).unlink()
    done = cli("measure", "--out", str(tmp_path / "all"), "--merge", *(str(tmp_path / name) for name in folders))
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*(tmp_path / "all").iterdir()], "nothing is written"


def test_folders_without_merge(tmp_path: Path) -> None:
    done = cli("measure", "--out", str(tmp_path), "somewhere")
    assert (done.returncode, done.stderr) == (2, "vramplan: somewhere: folders are for --merge\n")
