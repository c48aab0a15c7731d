"""Reserved memory under ZeRO and FSDP against runs of trainers on emulated GPUs (tests/reserved_sharing_runs.jsonl)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of
from tests.recorded_runs import job_of, model_of
from tests.reserved_sharing import recorded
from tests.trl_sharing import GPU
from vramplan.analytic.job_steps import JobSteps
from vramplan.memory.allocator import UNLIMITED
from vramplan.memory.summarize import replayer

RECORDED = recorded()
ALLOCATED, RESERVED = 0.007, 0.0015


def name_of(row: dict[str, Any]) -> str:
    job = row["job"]
    return f"{job['strategy']} {job['method']} {job.get('fsdp', job.get('zero', {}))} {job.get('offload', '')}"


@pytest.mark.parametrize("row", RECORDED, ids=name_of)
def test_reserved_memory_agrees(row: dict[str, Any]) -> None:
    job = job_of(row)
    steps = JobSteps(model_of(row), job, card_of(GPU))
    timeline = steps.timelines(job.micro_batch_size, job.gradient_accumulation_steps)[0]
    peaks = timeline.phase_peaks(timeline.live_bytes())
    for phase in ("forward", "backward"):
        assert peaks[phase] == pytest.approx(row["peaks"][phase], rel=ALLOCATED)
    if job.strategy == "fsdp":
        assert peaks["loaded"] == pytest.approx(row["peaks"]["loaded"], rel=ALLOCATED)
    reserved = replayer(timeline, job)(UNLIMITED).peak_reserved_bytes
    assert reserved == pytest.approx(row["peaks"]["reserved"], rel=RESERVED)


def test_what_overlaps_has_memory_of_a_stream_of_its_own() -> None:
    held = {row["job"].get("zero", {}).get("overlap_comm", False): row["peaks"]["reserved"] for row in RECORDED[2:4]}
    assert held[True] > held[False]
