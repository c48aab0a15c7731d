"""How FSDP 1 loads a model, against runs of trainers on emulated GPUs: every unit is whole on each GPU twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests import llamafactory_sharing, task_sharing, trl_odds_sharing, trl_sharing, verl_sharing
from tests.recorded_runs import estimated_peaks, job_of
from vramplan import estimate
from vramplan.analytic.strategies.fsdp1_loading import BUCKET_BYTES, buckets

MODULES = (trl_sharing, task_sharing, trl_odds_sharing, llamafactory_sharing, verl_sharing)
WORST = 0.0013
SMALL: dict[str, Any] = {"num_gpus": 2, "sequence_length": 64, "strategy": "fsdp", "fsdp": {"version": 1}}


def is_fsdp1(row: dict[str, Any]) -> bool:
    job = job_of(row)
    return job.strategy == "fsdp" and job.fsdp.version == 1


RECORDED = [row for module in MODULES for row in module.recorded() if is_fsdp1(row)]


def test_loading_agrees_with_the_trainers() -> None:
    """In some it is the peak: of short samples, a large vocabulary's embedding, twice, is more than a step."""
    assert len(RECORDED) >= 12
    assert {row["job"]["method"] for row in RECORDED} == {"full", "lora"}
    highest = set()
    for row in RECORDED:
        estimated, recorded = estimated_peaks(row, trl_sharing.GPU), row["peaks"]
        assert estimated["loaded"] == pytest.approx(recorded["loaded"], rel=WORST)
        assert max(estimated, key=lambda phase: estimated[phase]) == max(recorded, key=lambda phase: recorded[phase])
        highest.add(max(recorded, key=lambda phase: recorded[phase]))
    assert "loaded" in highest


def test_a_verdict_counts_what_loading_takes() -> None:
    found = estimate("llama-3.2-1b", "h100", method="lora", **SMALL)
    assert found.peak_phase == "loaded"
    embedding = 128256 * 2048 * 2
    assert found.peak_allocated_bytes > 2.5 * embedding


def test_weights_are_sent_in_buckets() -> None:
    third = BUCKET_BYTES // 3
    assert list(buckets([BUCKET_BYTES, third, third, BUCKET_BYTES, 5])) == [0, 2 * third + BUCKET_BYTES, 0]
    assert list(buckets([5, 6])) == [11]
    assert list(buckets([])) == []
