"""LLaMA-Factory's and ms-swift's trainers under ZeRO and FSDP against the estimates (recorded by their modules)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests import swift_sharing
from tests.llamafactory_sharing import recorded
from tests.recorded_runs import job_of
from tests.test_trl_sharing import errors_of
from vramplan import estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.001


def holds_the_head(row: dict[str, Any]) -> bool:
    """Whether ZeRO-3 drops a head that no backward reaches, which the estimate holds until the forward ends."""
    job = job_of(row)
    return job.task == "reward" and job.strategy == "zero3" and row["config"].get("tie_word_embeddings") is False


def test_peaks_agree_with_llamafactory() -> None:
    errors = [
        error
        for row in RECORDED
        for phase, error in errors_of(row).items()
        if not (phase == "forward" and holds_the_head(row))
    ]
    assert len(errors) >= 20
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


def test_peaks_agree_with_swift() -> None:
    errors = [error for row in swift_sharing.recorded() for error in errors_of(row).values()]
    assert len(errors) >= 3
    assert max(errors) <= MEDIAN


def test_what_stops_or_was_not_compared_is_refused() -> None:
    reward: dict[str, Any] = {"task": "reward", "loss": "value_head", "num_gpus": 2}
    with pytest.raises(VramplanError, match="stops at the fp32 value head"):
        estimate("qwen2.5-0.5b", "h100", strategy="zero3", method="full", **reward)
    with pytest.raises(VramplanError, match="was not compared"):
        estimate("qwen2.5-0.5b", "h100", strategy="fsdp", **reward)
    assert estimate("qwen2.5-0.5b", "h100", strategy="zero3", **reward).job.reentrant
