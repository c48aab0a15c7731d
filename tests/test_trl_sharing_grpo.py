"""TRL's GRPO and RLOO on several GPUs against the estimates (tests/trl_sharing_grpo_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.trl_sharing import GPU
from tests.trl_sharing_grpo import recorded
from vramplan import estimate
from vramplan.errors import UnsupportedError

RECORDED = recorded()
WORST, MEDIAN = 0.016, 0.0005
SHARDED: dict[str, Any] = {
    "task": "grpo",
    "num_gpus": 2,
    "prompt_length": 64,
    "sequence_length": 256,
    "micro_batch_size": 8,
}


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak but for loading's, when nothing is trained yet."""
    peaks = estimated_peaks(row, GPU)
    phases = peaks.keys() & row["peaks"].keys() - {"loaded"}
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in phases}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::9], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert len(errors) >= 22
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_fsdp_1_is_refused() -> None:
    """Its runs end with PyTorch's AssertionError, or gather what is not modelled."""
    with pytest.raises(UnsupportedError, match="use fsdp version 2"):
        estimate("qwen2.5-0.5b", "h100", strategy="fsdp", fsdp={"version": 1}, generate_with="vllm", **SHARDED)


def test_a_server_gets_packed_weights() -> None:
    """Two buffers of 1 GiB and the weight that fills each, beside the model."""
    job = {**SHARDED, "num_gpus": 1, "method": "lora", "generate_with": "vllm_server"}
    found = estimate("llama-3.1-8b", "h200", **job)
    new = found.phases["generation"] - found.phases["loaded"]
    assert 2 * 2**30 < new < 2 * (2**30 + 128_256 * 4096 * 2) + 2**29


@pytest.mark.parametrize(("loss", "dtype"), [("chunked", "bf16"), ("logits_to_keep", "fp32")])
def test_only_trl_leaves_adapters_in_the_dtype_of_the_base(loss: str, dtype: str) -> None:
    """Under ZeRO-3 (autocast_adapter_dtype=False); other trainers leave them to PEFT."""
    found = estimate("qwen2.5-0.5b", "h100", strategy="zero3", method="lora", loss=loss, **SHARDED)
    assert (found.job.lora_dtype, found.job.reentrant) == (dtype, True)
