"""ms-swift's DPO and GRPO with images under ZeRO-3 against the estimates."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.swift_sharing import recorded
from tests.test_trl_sharing_grpo import errors_of
from vramplan import estimate
from vramplan.errors import UnsupportedError

RECORDED = recorded()
WORST, MEDIAN = 0.01, 0.001


def name_of(row: dict[str, Any]) -> str:
    return f"{row.get('seeing') or row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[:1], ids=name_of)
def test_peaks_agree_with_swift(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_swift() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert len(errors) == 11
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_a_forward_of_its_own_is_refused() -> None:
    """Under DeepSpeed ms-swift has one for Qwen3-VL."""
    job: dict[str, Any] = {"strategy": "zero3", "num_gpus": 2, "images": 1, "image_size": (500, 400)}
    with pytest.raises(UnsupportedError, match="qwen3_vl"):
        estimate("qwen3-vl-2b", "h100", task="dpo", loss="logits_to_keep", sequence_length=512, **job)
