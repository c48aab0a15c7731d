"""A campaign as jobs of a cluster: what is submitted, and what a job does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, cli
from tests.test_campaign import CHILD, H100, FakeNvml
from vramplan.errors import ConfigError, UnknownNameError
from vramplan.measurements import cluster, ledger, subprocess_runner

SMALL = ("--only", "qwen2.5-0.5b")
"""The two jobs of the matrix with the smallest model."""


def on_two_gpus(options: Mapping[str, Any]) -> int:
    """What a submitted job runs, on a node with two invented GPUs."""
    from vramplan.cli.measure import measure_in_job

    os.environ.pop("CUDA_VISIBLE_DEVICES")
    sys.modules["pynvml"] = FakeNvml(H100, H100)  # type: ignore[assignment]
    subprocess_runner.CHILD = ("-c", f"LOG = {os.environ['LOG']!r}\n" + CHILD.replace("SCRIPT", ""))
    return measure_in_job(options)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the jobs outlive the command
def test_jobs_fill_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By submitit's executor for one host, which starts the same process as Slurm would."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("LOG", str(tmp_path))
    monkeypatch.setattr("vramplan.cli.measure.measure_in_job", on_two_gpus)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(H100, H100))
    runs = tmp_path / "runs"
    done = cli("measure", "--out", "runs", "--on", "local", "--jobs", "2", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Submitted 2 jobs: ")
    assert f"They print into {runs / 'jobs'}." in done.stdout
    deadline = time.monotonic() + 60
    while len([*runs.glob("*.json")]) < 2 or len([*runs.glob("jobs/*_result.pkl")]) < 2:
        assert time.monotonic() < deadline, "".join(log.read_text() for log in runs.glob("jobs/*.out"))
        time.sleep(0.1)
    assert len(ledger.load_all(runs)) == 2
    logs = [log.read_text() for log in runs.glob("jobs/*.out")]
    assert all("1 run measured." in log for log in logs), logs
    assert any("qwen2.5-0.5b micro_batch=32" in log for log in logs)


def test_a_job_that_cannot_run_says_so_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from vramplan.cli.measure import measure_in_job

    assert measure_in_job({"out": tmp_path, "device": "cpu"}) == 2
    assert capsys.readouterr().err.startswith("vramplan: --device cpu needs --as-card")


def test_shares_are_all_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(H100, H100, H100, H100))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    arguments = ("measure", "--out", str(tmp_path), "--list")
    shares = [cli(*arguments, "--shard", f"{n}/3").stdout.splitlines() for n in (1, 2, 3)]
    assert sorted(line for share in shares for line in share) == sorted(cli(*arguments).stdout.splitlines())


# -- Slurm -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of Slurm that note what they are given; returns the submitted file."""
    pytest.importorskip("submitit")
    folder = tmp_path / "bin"
    folder.mkdir()
    submitted = tmp_path / "submitted.sh"
    refused = 'grep -q nowhere "$1" && { echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; }\n'
    scripts = {"srun": "", "sbatch": f'{refused}cat "$1" > {submitted}\necho "Submitted batch job 4242"\n'}
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return submitted


def test_what_slurm_is_asked_for(slurm: Path, tmp_path: Path) -> None:
    settings = (
        "partition=gpu",
        "account=lab",
        "gpus-per-node=4",
        "time=90",
        "reservation=tonight",
        "setup=module load cuda",
    )
    pairs = [word for each in settings for word in ("--slurm", each)]
    done = cli("measure", "--out", str(tmp_path / "runs"), "--on", "slurm", *pairs, "--jobs", "3", "--minutes", "60")
    assert done.returncode == 0, done.stderr
    assert "Submitted 3 jobs: 4242_0, 4242_1, 4242_2." in done.stdout
    lines = slurm.read_text().splitlines()
    for line in (
        "--partition=gpu", "--account=lab", "--gpus-per-node=4", "--time=90", "--reservation=tonight", "--nodes=1",
        "--ntasks-per-node=1", "--job-name=vramplan", "--array=0-2%3",
    ):  # fmt: skip
        assert f"#SBATCH {line}" in lines, line
    assert "module load cuda" in lines


def test_a_job_asks_for_one_gpu_and_enough_time() -> None:
    assert cluster.settings_of([], 9) == {"time": 19, "gpus_per_node": 1, "job_name": "vramplan"}
    assert "gpus_per_node" not in cluster.settings_of(["gres=gpu:a100:2"], 9)
    assert "gpus_per_node" not in cluster.settings_of(["gpus=a100:2"], 9)
    assert "gpus_per_node" not in cluster.settings_of([], 9, needs_gpu=False)


def test_slurm_may_refuse(slurm: Path, tmp_path: Path) -> None:
    done = cli("measure", "--out", str(tmp_path / "runs"), "--on", "slurm", "--slurm", "partition=nowhere")
    assert done.returncode == 2
    assert done.stderr == "vramplan: --on slurm: sbatch: error: invalid partition specified: nowhere\n"


def test_every_setting_is_one_of_submitit() -> None:
    pytest.importorskip("submitit")
    from submitit.slurm.slurm import _get_default_parameters

    known = _get_default_parameters()
    assert {*cluster.NUMBERS, *cluster.TEXTS, *cluster.LISTS, "additional_parameters"} <= known.keys()
    assert not {*cluster.OTHERS} & known.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--on", "slurm", "--slurm", "partion=gpu"),
            "unknown Slurm setting 'partion'; did you mean partition, reservation?",
        ),
        (("--on", "slurm", "--slurm", "partition"), "--slurm partition: expected KEY=VALUE"),
        (("--on", "slurm", "--slurm", "time=1:00:00"), "--slurm time=1:00:00: expected a whole number of minutes"),
        (("--on", "slurm", "--slurm", "time=5"), "--slurm time=5: --minutes 9 needs more"),
        (("--on", "slurm", "--slurm", "gpus_per_node=two"), "expected a whole number above 0"),
        (("--on", "kubernetes"), "unknown place to run on 'kubernetes'; known: slurm, local"),
        (("--on", "slurm", "--as-card", "rtx9999"), "'rtx9999'"),
        (("--on", "slurm", "--only", "nothing like it"), "no run has that in its name"),
        (("--on", "slurm", "--list"), "--list and --on: give one"),
        (("--on", "slurm", "--for", "dstack"), "--on and --for: give one"),
        (("--on", "slurm", "--gpus", "h100"), "--on slurm: give it without --gpus"),
        (("--on", "slurm", "--device", "tpu"), "--device tpu: expected cuda, cpu or emulated"),
        (("--on", "slurm", "--shard", "1/2"), "--on slurm: give it without --shard"),
        (("--slurm", "partition=gpu"), "--slurm is about submitted jobs: add --on slurm"),
        (("--jobs", "2"), "--jobs is about submitted jobs: add --on slurm"),
        (("--shard", "3/2"), "--shard 3/2: expected K/N"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli("measure", "--out", str(tmp_path), *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_slurm_or_submitit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs"
    arguments = ("measure", "--out", str(folder), "--on", "slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stderr == 'vramplan: --on slurm needs submitit: pip install "vramplan[slurm]"\n'
    monkeypatch.delitem(sys.modules, "submitit")
    pytest.importorskip("submitit")
    done = cli(*arguments, PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "vramplan: --on slurm: this host has no Slurm (no srun command is found)\n"
    assert not folder.exists()


def test_this_host_needs_a_gpu(tmp_path: Path) -> None:
    done = cli("measure", "--out", str(tmp_path / "runs"), "--on", "local")
    assert done.returncode == 2
    assert done.stderr.startswith("vramplan: no GPU to probe: ")
    assert not (tmp_path / "runs").exists()


def test_settings_name_what_is_known() -> None:
    with pytest.raises(UnknownNameError, match="known: time, gpus_per_node"):
        cluster.settings_of(["colour=red"], 9)
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        cluster.settings_of(["=x"], 9)
