"""TRL's DPO, KTO and GRPO with images under ZeRO-3 and FSDP 2 against the estimates."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.test_trl_sharing_grpo import errors_of
from tests.trl_sharing_seeing import recorded
from vramplan import estimate
from vramplan.errors import UnsupportedError

RECORDED = recorded()
WORST, MEDIAN = 0.03, 0.001


def name_of(row: dict[str, Any]) -> str:
    return f"{row['seeing']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[1:2], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_other_trainers_are_refused() -> None:
    job: dict[str, Any] = {"task": "dpo", "strategy": "zero3", "num_gpus": 2, "images": 1, "image_size": (500, 400)}
    with pytest.raises(UnsupportedError, match="use strategy=zero2"):
        estimate("qwen2.5-vl-3b", "h100", loss="log_softmax", **job)
