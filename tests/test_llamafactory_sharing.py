"""LLaMA-Factory's trainers under ZeRO and FSDP against the estimates (tests/llamafactory_sharing_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.llamafactory_sharing import recorded
from tests.test_trl_sharing import errors_of
from vramplan import estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.001


def test_peaks_agree_with_llamafactory() -> None:
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert len(errors) >= 20
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


def test_what_stops_or_was_not_compared_is_refused() -> None:
    reward: dict[str, Any] = {"task": "reward", "loss": "value_head", "num_gpus": 2}
    with pytest.raises(VramplanError, match="stops at the fp32 value head"):
        estimate("qwen2.5-0.5b", "h100", strategy="zero3", method="full", **reward)
    with pytest.raises(VramplanError, match="was not compared"):
        estimate("qwen2.5-0.5b", "h100", strategy="fsdp", method="full", **reward)
    with pytest.raises(VramplanError, match="Must flatten tensors with uniform dtype"):
        estimate("qwen2.5-0.5b", "h100", strategy="fsdp", fsdp={"version": 1}, **reward)
    assert estimate("qwen2.5-0.5b", "h100", strategy="zero3", **reward).job.reentrant
