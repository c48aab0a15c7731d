"""Classifiers, embeddings and rerankers on several GPUs against estimates (tests/task_sharing_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.task_sharing import recorded
from tests.trl_sharing import GPU
from vramplan import estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.008, 0.00001


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak."""
    peaks = estimated_peaks(row, GPU)
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in ("forward", "backward", "optimizer")}


def test_peaks_agree_with_the_trainers() -> None:
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert len(errors) >= 40
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "fsdp"}, "strategy=fsdp with task=embedding"),
        ({"strategy": "zero3", "embedding_loss": "cached_multiple_negatives"}, "were not compared"),
        ({"strategy": "zero3", "reentrant": True}, "were not compared"),
    ],
)
def test_embeddings_that_were_not_compared_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(VramplanError, match=message):
        estimate("qwen3-embedding-0.6b", "h100", task="embedding", num_gpus=2, **settings)
