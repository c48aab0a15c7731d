"""ms-swift's trainers under ZeRO, most with images, and their weights on the way to vLLM, against the estimates."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.swift_sharing import recorded
from tests.trl_sharing import GPU
from vramplan import estimate
from vramplan.errors import UnsupportedError
from vramplan.memory import vllm
from vramplan.units import MiB

RECORDED = recorded()
WORST, MEDIAN = 0.015, 0.001
SMALL = MiB
"""What small tensors may be off, which matter in phases that hold next to nothing: all is on the host."""


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak but for loading's, where more than small tensors are off."""
    peaks, sleeps = estimated_peaks(row, GPU), row["job"].get("generate_with") == "vllm_sleep"
    idle = vllm.asleep().num_bytes if sleeps else 0  # these runs have no vLLM
    unknown = {"generation"} if sleeps else set[str]()
    phases = peaks.keys() & row["peaks"].keys() - {"loaded"} - unknown
    off = {phase: abs(peaks[phase] - idle - row["peaks"][phase]) for phase in phases}
    return {phase: size / row["peaks"][phase] if size > SMALL else 0.0 for phase, size in off.items()}


def name_of(row: dict[str, Any]) -> str:
    settings = {**row["job"], **row.get("options", {})}
    return f"{row.get('seeing') or row['model']} " + " ".join(f"{name}={value}" for name, value in settings.items())


@pytest.mark.parametrize("row", RECORDED[:1], ids=name_of)
def test_peaks_agree_with_swift(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_swift() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert len(errors) == 19
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


@pytest.mark.parametrize("row", [row for row in RECORDED if row["job"].get("offload") == "all"], ids=name_of)
def test_weights_that_wait_on_the_host_reach_vllm(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


def test_a_forward_of_its_own_is_refused() -> None:
    """Under DeepSpeed ms-swift has one for Qwen3-VL."""
    job: dict[str, Any] = {"strategy": "zero3", "num_gpus": 2, "images": 1, "image_size": (500, 400)}
    with pytest.raises(UnsupportedError, match="qwen3_vl"):
        estimate("qwen3-vl-2b", "h100", task="dpo", loss="logits_to_keep", sequence_length=512, **job)
