"""What several test files share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.estimator import lay_out
from vramplan.analytic.layer_folding import STACK, Fold, FoldPlan
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.measurement import Environment, Measured, Peaks

ROOT = Path(__file__).parent.parent


def spec_of(name: str, **config: Any) -> ModelSpec:
    """A shipped model, some keys of its configuration changed."""
    spec = find_model(name)
    assert spec is not None
    return spec.model_copy(update={"config": {**spec.config, **config}}) if config else spec


def card_of(name: str = "h100") -> Gpu:
    """A card of the catalogue."""
    return find_gpu(name)


def setting_of(spec: ModelSpec, job: Job) -> tuple[StepSpec, FoldPlan]:
    """A step of every layer."""
    setting, plan = lay_out(spec, job, True)
    stacks = tuple(tuple(kinds) for kinds in architecture_of(spec).stacks())
    folds = []
    for one in plan.stacks:
        kinds = stacks[one.base // STACK]
        folds.append(Fold(kinds, one.base + len(kinds), 0, 1, one.base))
    return replace(setting, stacks=stacks), FoldPlan(tuple(folds))


def cli(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, 80 columns wide."""
    return subprocess.run(
        [sys.executable, "-m", "vramplan", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **environment},
        timeout=120,
        check=False,
    )


def cli_json(*arguments: str) -> Any:
    """What `--json` prints."""
    done = cli(*arguments, "--json")
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def measured_of(job: Job, **figures: Any) -> Measured:
    """A measured run of Qwen2.5-0.5B, made up."""
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
