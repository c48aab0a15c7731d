"""Timelines that are known from a job with other lengths are those that would be laid out anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan.analytic.estimator import Estimator
from vramplan.analytic.job_steps import JobSteps
from vramplan.analytic.known_shapes import KnownShapes
from vramplan.analytic.step_record import StepRecord
from vramplan.inputs.job import Job
from vramplan.planner.job_defaults import complete_job

JOBS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("qwen2.5-0.5b", {"method": "lora"}, [{"sequence_length": 2048}, {"sequence_length": 2100}]),
    ("qwen2.5-0.5b", {"strategy": "zero3", "num_gpus": 8}, [{"sequence_length": 512}, {"sequence_length": 4000}]),
    ("qwen2.5-0.5b", {"strategy": "fsdp", "num_gpus": 2}, [{"sequence_length": 1000}, {"sequence_length": 1001}]),
    ("gemma-2-2b", {"attention": "eager"}, [{"sequence_length": 4000}, {"sequence_length": 5000}]),
    (
        "qwen2-vl-2b-instruct",
        {"images": 1, "sequence_length": 2048},
        [{"image_size": (448, 448)}, {"image_size": (476, 448)}],
    ),
]


@pytest.mark.parametrize(("model", "settings", "lengths"), JOBS)
def test_a_known_timeline_is_the_one_that_would_be_laid_out(
    model: str, settings: dict[str, Any], lengths: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, find = [], KnownShapes.find

    def noted(self: KnownShapes, job: Job, rest: object, record: StepRecord) -> Any:
        found.append(find(self, job, rest, record))
        return found[-1]

    monkeypatch.setattr(KnownShapes, "find", noted)
    spec, gpu, estimator = spec_of(model), card_of("h100"), Estimator()
    for length in lengths:
        job = complete_job(spec, gpu, {"gradient_accumulation_steps": 2, **settings, **length})
        shared = estimator(spec, job, gpu).complete()
        fresh = JobSteps(spec, job, gpu).begin(1, 2, several=False).complete()
        assert shared == fresh
    assert [shape is not None for shape in found] == [False, False, True, False]


def test_steps_with_other_small_tensors_are_laid_out_anew() -> None:
    """They are left out of some layers, so that a timeline of longer samples would lack others."""
    spec, gpu, estimator = spec_of("qwen2.5-0.5b"), card_of("h100"), Estimator()
    for length in (2048, 64, 300, 2048):
        job = complete_job(spec, gpu, {"sequence_length": length})
        assert estimator(spec, job, gpu).complete() == JobSteps(spec, job, gpu).begin(1, 1, several=False).complete()
