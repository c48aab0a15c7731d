"""Rerankers compared with runs of sentence-transformers' own CrossEncoderTrainer (tests/cross_encoder_trace.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan.analytic.job_steps import JobSteps
from vramplan.inputs.job import Job

CASES = Path(__file__).parent / "cases" / "cross_encoders.json"
GPU = "h100"
LAYERS = {"num_hidden_layers": 3}
"""All models have so many."""
RECORDED = json.loads(CASES.read_text())


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['model']} {row['options']['loss']}")
def test_peaks_agree_with_the_trainer(row: dict[str, Any]) -> None:
    job = Job(**row["job"])
    steps = JobSteps(spec_of(row["model"], **LAYERS), job, card_of(GPU))
    timeline = steps.timelines(job.micro_batch_size, job.gradient_accumulation_steps)[0]
    peaks = timeline.phase_peaks(timeline.live_bytes())
    assert max(abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()) < 0.0005
