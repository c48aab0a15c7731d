"""Files of SkyPilot and dstack that measure on rented GPUs, and what is left for GPUs elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.helpers import card_of, cli, measured_of
from vramplan.measurements import ledger, matrix
from vramplan.version import __version__

FILE = ("measure", "--out", "my runs", "--minutes", "90", "--gpus", "rtx4090,a100-40gb", "--for")


def documents(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(text))


def test_a_skypilot_file_has_a_task_for_each_kind_of_gpu() -> None:
    done = cli(*FILE, "skypilot", "--num-gpus", "2")
    assert done.returncode == 0
    assert done.stderr == "vramplan: skypilot calls every form of the A100 by this name, PCIe and SXM\n"
    head, *tasks = documents(done.stdout)
    assert head == {"name": "vramplan-measure"}
    assert [task["resources"] for task in tasks] == [{"accelerators": {"RTX4090": 2}}, {"accelerators": {"A100": 2}}]
    assert [task["name"] for task in tasks] == ["rtx4090", "a100-40gb-sxm"]
    for task in tasks:
        assert (task["envs"], task["secrets"]) == ({"LEDGER": None}, {"HF_TOKEN": None})
        assert task["setup"] == f'pip install "vramplan[probe]=={__version__}" deepspeed\n'
        assert "vramplan measure --out measured --minutes 90 ||" in task["run"]
    assert "#   hf download USER/DATASET --repo-type dataset --local-dir 'my runs'\n" in done.stdout


def test_a_dstack_file_is_applied_for_each_kind_of_gpu() -> None:
    done = cli(*FILE, "dstack")
    (task,) = documents(done.stdout)
    assert task["type"] == "task"
    assert task["env"] == ["HF_TOKEN", "LEDGER"]
    assert task["max_duration"] == "150m"
    assert task["resources"] == {"gpu": {"name": ["RTX4090"], "memory": "24GB", "count": 1}}
    assert task["commands"][0] == f'uv pip install "vramplan[probe]=={__version__}"'
    launched = [line for line in done.stdout.splitlines() if "dstack apply" in line]
    assert ["-n measure-rtx4090 --gpu RTX4090:24GB:1" in launched[0], "--gpu A100:40GB:1" in launched[1]] == [True] * 2


@pytest.mark.parametrize("launcher", ["skypilot", "dstack"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_commands_of_a_task(tmp_path: Path, launcher: str, fails: bool) -> None:
    """In a shell, with other programs in the places of hf and vramplan: what was measured is uploaded."""
    task = documents(cli(*FILE, launcher, "--only", "length=(512|1024)|it's: x|qwen").stdout)[-1]
    run = task["run"] if launcher == "skypilot" else task["commands"][1]
    for name in ("hf", "vramplan"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> log\n' + "exit 1\n" * (fails and name == "vramplan"))
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "LEDGER": "me/ledger"}
    subprocess.run(["bash", "-e", "-c", run], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "log").read_text().splitlines() == [
        "hf download me/ledger --repo-type dataset --local-dir measured",
        "vramplan measure --out measured --minutes 90 --only length=(512|1024)|it's: x|qwen",
        "hf upload me/ledger measured . --repo-type dataset --private",
    ]


def test_what_is_left_for_gpus_elsewhere(tmp_path: Path) -> None:
    arguments = ("measure", "--out", str(tmp_path), "--list", "--gpus", "h100,rtx4090", "--only", "0.5b.*sgd")
    (case,) = (case for case in matrix.CASES if "0.5b" in case.name and "sgd" in case.name)
    assert cli(*arguments).stdout.count(case.name.split()[1]) == 2
    spec, job = case.full_job(card_of("h100"))
    ledger.save(tmp_path, measured_of(job, card="h100-sxm", model=spec.name, config=spec.config))
    lines = cli(*arguments).stdout.splitlines()
    assert lines[0] == "h100-sxm: nothing is left"
    assert lines[1].startswith("rtx4090: qwen2.5-0.5b")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--for", "skypilot"), "--for skypilot: give --gpus, the GPUs to rent"),
        (("--for", "terraform", "--gpus", "h100"), "unknown launcher 'terraform'; known: skypilot, dstack"),
        (("--for", "skypilot", "--gpus", "mi300x"), "--gpus mi300x: only NVIDIA GPUs are measured"),
        (("--for", "dstack", "--gpus", "rtx9999"), "'rtx9999'"),
        (("--for", "skypilot", "--gpus", "rtx3060"), "skypilot has no name for"),
        (("--for", "skypilot", "--gpus", "h100", "--num-gpus", "0"), "--num-gpus"),
        (("--list", "--gpus", "h100", "--device", "tpu"), "--device tpu: expected cuda, cpu or emulated"),
        (("--num-gpus", "2"), "--num-gpus is about rented machines"),
        (("--gpus", "h100"), "--gpus is for --list, --for skypilot and --for dstack"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli("measure", "--out", str(tmp_path), *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
