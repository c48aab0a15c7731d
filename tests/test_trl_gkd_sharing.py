"""TRL's distillation trainers on two emulated GPUs against the estimates (tests/trl_gkd_sharing_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.trl_gkd_sharing import recorded
from tests.trl_sharing import GPU
from vramplan import estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
PHASES = ("forward", "teacher", "backward", "optimizer")
WORST, MEDIAN = 0.005, 0.0002
SETTINGS: dict[str, Any] = {
    "task": "gkd",
    "teacher": "HuggingFaceTB/SmolLM2-1.7B",
    "sequence_length": 256,
    "generated_by": "none",
    "num_gpus": 4,
}


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    peaks = estimated_peaks(row, GPU)
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in PHASES if phase in row["peaks"]}


@pytest.mark.parametrize("row", RECORDED[::5], ids=lambda row: f"{row['job']['loss']} {row['job']['strategy']}")
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert {row["job"]["strategy"] for row in RECORDED} == {"ddp", "zero1", "zero2", "zero3"}
    assert {row["job"]["loss"] for row in RECORDED} == {"standard", "chunked"}
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


def test_stage_3_shards_the_teacher_too() -> None:
    whole, shared = (
        estimate("smollm2-135m", "h100", strategy=strategy, **SETTINGS).phases["optimizer"]
        for strategy in ("zero2", "zero3")
    )
    assert whole - shared > 2 * 1.7e9 * 0.7  # of 1.7 billion weights in bf16 each of four GPUs has a quarter


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "zero3", "generated_by": "teacher"}, "gathers the whole teacher"),
        ({"strategy": "zero3", "loss": "chunked"}, "gathers both heads by itself"),
        ({"strategy": "fsdp"}, "does not place a teacher under FSDP"),
        ({"loss": "chunked", "autocast": "bf16"}, "use autocast=none"),
        ({"loss": "chunked", "generated_by": "both"}, "the student alone generates"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as refused:
        estimate("smollm2-135m", "h100", **{**SETTINGS, **settings})
    assert said in str(refused.value)
