"""Runs of trainers' own code, as rows of a file: a model, a job, the peak of live tensors in each phase, in bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.helpers import card_of, spec_of
from tests.matrix_cases import spec_for
from vramplan.analytic.job_steps import JobSteps
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_missing(
    path: Path, cases: Iterable[dict[str, Any]], run: Callable[[dict[str, Any]], dict[str, int] | None]
) -> None:
    """Run the cases that a file lacks, and add each with its peaks; `run` gives None for one that failed."""
    known = [{**row, "peaks": None} for row in rows_of(path)]
    for case in cases:
        row = json.loads(json.dumps(case))
        if {**row, "peaks": None} in known or (peaks := run(row)) is None:
            continue
        with path.open("a") as file:
            file.write(json.dumps({**row, "peaks": peaks}) + "\n")


def job_of(row: dict[str, Any]) -> Job:
    """The job of a row."""
    return Job(**{name: tuple(value) if isinstance(value, list) else value for name, value in row["job"].items()})


def model_of(row: dict[str, Any]) -> ModelSpec:
    """The model of a row: one of the catalogue, or a small one that sees, if need be with another vocabulary."""
    if "seeing" not in row:
        return spec_of(row["model"], **row["config"])
    spec = spec_for(row["seeing"])
    if "changes" in row:
        spec = spec.model_copy(update={"config": {**spec.config, **row["changes"]}})
    if "vocabulary" not in row:
        return spec
    config, size = spec.config, {"vocab_size": row["vocabulary"]}
    text = {"text_config": {**config["text_config"], **size}} if "text_config" in config else {}
    return spec.model_copy(update={"config": {**config, **size, **text}})


def estimated_peaks(row: dict[str, Any], gpu: str) -> dict[str, int]:
    """The estimate of the peak of live tensors in each phase, in bytes."""
    job = job_of(row)
    steps = JobSteps(model_of(row), job, card_of(gpu))
    timeline = steps.timelines(job.micro_batch_size, job.gradient_accumulation_steps)[0]
    return timeline.phase_peaks(timeline.live_bytes())


def errors_of(row: dict[str, Any], gpu: str) -> dict[str, float]:
    """The relative error of each phase's peak; what goes to a server is generation's, which not all runs have."""
    peaks = estimated_peaks(row, gpu)
    assert peaks.keys() - {"generation"} == row["peaks"].keys() - {"generation"}
    return {phase: abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()}
