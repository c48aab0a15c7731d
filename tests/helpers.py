"""What several test files share: shipped models and GPUs, the command line, invented measurements."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.layer_folding import STACK, Fold, FoldPlan, unfold
from vramplan.analytic.prepare import lay_out
from vramplan.analytic.run_timeline import evaluation_bytes
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.train_step import simulate_evaluation
from vramplan.analytic.unfolded_step import Step
from vramplan.cli import main
from vramplan.cli.typer_app import app_of
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.fused_attention import FusedAttention
from vramplan.memory.measurement import Environment, Measured, Peaks
from vramplan.memory.timeline import rounded_bytes

ROOT = Path(__file__).parent.parent
TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1"}


def spec_of(name: str, **config: Any) -> ModelSpec:
    """A shipped model; `config` changes keys of its configuration."""
    spec = find_model(name)
    assert spec is not None
    return spec.model_copy(update={"config": {**spec.config, **config}}) if config else spec


def card_of(name: str = "h100") -> Gpu:
    """A GPU of the catalogue."""
    return find_gpu(name)


def setting_of(spec: ModelSpec, job: Job) -> tuple[StepSpec, FoldPlan]:
    """A step of every layer."""
    setting, plan = lay_out(spec, job, FusedAttention(flash=True))
    stacks = tuple(tuple(kinds) for kinds in architecture_of(spec).stacks())
    folds = []
    for one in plan.stacks:
        kinds = stacks[one.base // STACK]
        folds.append(Fold(kinds, tuple(range(len(kinds))), one.base))
    return replace(setting, stacks=stacks), FoldPlan(tuple(folds))


def evaluation_of(step: Step) -> dict[int, int]:
    """Highest bytes of live tensors in an evaluation at a step's batch, without model and states, by GPU."""
    record = simulate_evaluation(step.setting)
    sizes = [info.num_bytes for info in record.storages]
    unfolded = unfold(record, step.plan, sizes, brief=True)
    peaks = evaluation_bytes(unfolded, rounded_bytes(sizes), step.setting.placement.gpus)
    return {gpu: peak + gathered_bytes(step) for gpu, peak in peaks.items()}


def flops_of(step: Step) -> int:
    """Operations of a step's last micro-step."""
    return sum(step.record.kernels[number].flops * times for part in step.kernels() for number, times in part)


def cli(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Output and exit code of the command line, run in this process, 80 columns wide.

    Start-up, signals, pipes, encodings and worker processes need `cli_process`.
    """
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = Path.cwd()
    with (
        patch.dict(os.environ, {**TERMINAL, **environment}),
        patch("huggingface_hub.constants.HF_HUB_OFFLINE", environment.get("HF_HUB_OFFLINE") == "1"),
        patch.object(sys, "argv", ["vramplan", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        os.chdir(cwd)
        try:
            main()
            raise AssertionError("the command line ended without an exit code")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os.chdir(before)
    texts = [stream.buffer.getvalue().decode() for stream in (output, errors)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["vramplan", *arguments], code, *texts)


def cli_process(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same from a process of its own; starting it takes a second."""
    return subprocess.run(
        [sys.executable, "-m", "vramplan", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **TERMINAL, "PYTHONPATH": str(ROOT), **environment},
        timeout=120,
        check=False,
    )


@cache
def _typer_group() -> Any:
    """The whole command line as typer has it."""
    return typer.main.get_command(app_of())


def typer_command(name: str) -> Any:
    """A command of the command line as typer has it; a name of two words is one of a group."""
    found: Any = _typer_group()
    for word in name.split():
        found = found.commands[word]
    return found


def cli_json(*arguments: str) -> Any:
    """The answer that `--json` prints."""
    done = cli(*arguments, "--json")
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def answered_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A search that is asked the same several times, such as for each width of the terminal, and computes it once."""
    answers: dict[str, Any] = {}

    def once(*arguments: Any, **options: Any) -> Any:
        question = repr((arguments, sorted((name, value) for name, value in options.items() if name != "progress")))
        if question not in answers:
            answers[question] = function(*arguments, **options)
        return answers[question]

    return once


def measured_of(job: Job, **figures: Any) -> Measured:
    """An invented run of Qwen2.5-0.5B; `figures` are fields of Measured."""
    spec = spec_of("Qwen/Qwen2.5-0.5B")
    environment = Environment(device="NVIDIA H100 80GB HBM3", total_bytes=85 << 30, driver="580.1", cuda="13.0")
    values: dict[str, Any] = {
        "date": "2026-01-31",
        "model": spec.name,
        "model_type": spec.model_type,
        "config": spec.config,
        "card": "h100",
        "job": job,
        "environment": environment,
        "outcome": "ok",
        "phases": {"backward": Peaks(allocated_bytes=1, reserved_bytes=2)},
        "step_seconds": (2.0, 1.0, 1.5),
    }
    return Measured(**{**values, **figures})
