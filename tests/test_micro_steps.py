"""A micro-step that begins as an earlier one did is written from its events: the run is the same as without that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from vramplan.analytic.estimator import JobSteps
from vramplan.analytic.run_timeline import Layout
from vramplan.analytic.strategies.micro_steps import MicroSteps
from vramplan.analytic.strategies.zero3 import ZeroStage3
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.load import load_both

LITTLE: Mapping[str, Any] = {"prefetch_bucket_size": 0, "max_live_parameters": 10**6, "param_persistence_threshold": 0}
MUCH: Mapping[str, Any] = {"prefetch_bucket_size": 10**9, "max_live_parameters": 10**9, "max_reuse_distance": 10**9}


def layout(model: str, steps: int, settings: Mapping[str, Any]) -> Layout:
    spec, gpu = load_both(model, "h100-sxm", 0.9)
    job = complete_job(spec, gpu, {"strategy": "zero3", "num_gpus": 2, "sequence_length": 128, **settings})
    job_steps = JobSteps(spec, job, gpu)
    job_steps.begin(1, steps)
    (shape,) = job_steps._common.shapes.values()
    return shape.run.layout(0)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("qwen2.5-0.5b", {"method": "full"}),
        ("qwen2.5-0.5b", {"method": "full", "checkpointing": "none", "offload": "optimizer"}),
        ("qwen2.5-0.5b", {"method": "full", "checkpointing": "full", "zero": LITTLE, "num_gpus": 1}),
        ("qwen2.5-0.5b", {"method": "lora", "checkpointing": "full", "reentrant": False, "zero": MUCH}),
        ("qwen2.5-0.5b", {"method": "lora", "checkpointing": "none", "offload": "all"}),
        ("qwen2.5-vl-3b-instruct", {"method": "lora", "checkpointing": "full", "image_size": (224, 224)}),
        ("bert-base-uncased", {"method": "full", "num_gpus": 4}),
    ],
)
def test_a_repeated_micro_step_is_the_recorded_one(
    monkeypatch: pytest.MonkeyPatch, model: str, steps: int, settings: Mapping[str, Any]
) -> None:
    num_repeated, repeat = 0, MicroSteps._repeat

    def counted(*arguments: Any) -> None:
        nonlocal num_repeated
        num_repeated += 1
        repeat(*arguments)

    monkeypatch.setattr(MicroSteps, "_repeat", counted)
    written = layout(model, steps, settings)
    monkeypatch.setattr(ZeroStage3, "state", lambda _: None)
    recorded = layout(model, steps, settings)
    assert num_repeated > 0
    assert written.events == recorded.events
    assert [written.storages[kind] for kind in written.kind_of] == [
        recorded.storages[kind] for kind in recorded.kind_of
    ]
    assert list(written.marks) == list(recorded.marks)
    assert written.communication == recorded.communication
