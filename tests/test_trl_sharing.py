"""TRL's trainers under ZeRO and FSDP against the estimates (tests/trl_sharing_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks, job_of
from tests.trl_sharing import GPU, recorded
from vramplan import estimate
from vramplan.errors import UnsupportedError

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.001
NOT_REENTRANT = {"strategy": "zero3", "method": "lora", "reentrant": False}
KTO_FSDP1: dict[str, Any] = {"strategy": "fsdp", "task": "kto", "fsdp": {"version": 1}}


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak; of the forward if no reference runs between it and the loss."""
    job, peaks = job_of(row), estimated_peaks(row, GPU)
    phases = {"forward" if job.task is None else "reference", "backward", "optimizer"} & row["peaks"].keys()
    if job.strategy == "fsdp" and job.fsdp.version == 1:
        phases.add("forward")
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in phases}


def test_peaks_agree_with_trl() -> None:
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert len(errors) >= 150
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


@pytest.mark.parametrize("settings", [NOT_REENTRANT, KTO_FSDP1, {"strategy": "zero0"}])
def test_what_was_not_compared_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="task="):
        estimate("qwen2.5-0.5b", "h100", num_gpus=2, **{"task": "dpo", **settings})
