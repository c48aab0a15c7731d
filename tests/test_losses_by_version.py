"""The loss of transformers by its version, and what FSDP 1 shards of four-bit weights and adapters."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from vramplan.errors import VramplanError
from vramplan.frameworks.losses_by_version import loss_of


@pytest.mark.parametrize(
    ("version", "loss"),
    [
        ("4.31.0", "sliced_fp32"),
        ("4.45.2", "sliced_fp32"),  # modeling_llama.py: lm_head(...).float()
        ("4.46.0", "sliced"),  # loss/loss_utils.py
        ("4.48.3", "sliced"),
        ("4.49.0", "standard"),
        ("5.23.0", "standard"),
    ],
)
def test_versions(version: str, loss: str) -> None:
    assert loss_of(version) == loss


def test_the_half_precision_logits_are_dropped() -> None:
    """Up to 4.45 fp32 logits replace the model's own, 2 bytes for each of 4 x 1,024 tokens and 128,256 entries."""

    def forward(loss: Any, by: Any = "analytic") -> int:
        found = vramplan.estimate(
            "llama-3.2-1b", "a100-80gb-sxm", sequence_length=1024, micro_batch_size=4, loss=loss, by=by
        )
        return found.phases["forward"]

    assert forward("sliced") - forward("sliced_fp32") == pytest.approx(4 * 1024 * 128_256 * 2, abs=1 << 20)


def test_traced_too() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    job: dict[str, Any] = {"sequence_length": 128, "micro_batch_size": 2, "loss": "sliced_fp32"}
    traced = vramplan.estimate("qwen2.5-0.5b", "a100-80gb-sxm", by="trace", **job)
    tape = vramplan.estimate("qwen2.5-0.5b", "a100-80gb-sxm", **job)
    assert traced.peak_allocated_bytes == pytest.approx(tape.peak_allocated_bytes, rel=1e-5)


def test_four_bits_under_fsdp_1() -> None:
    """FSDP 1 without mixed precision shards nf4 beside adapters of the same dtype, not beside others."""
    job: dict[str, Any] = {
        "quantize": "nf4",
        "autocast": "none",
        "num_gpus": 2,
        "strategy": "fsdp",
        "fsdp": {"version": 1, "use_orig_params": False},
    }
    same = vramplan.estimate("meta-llama/Llama-2-7b-hf", "rtx3090", lora_dtype="bf16", **job)
    assert same.fits
    under_autocast = vramplan.estimate("meta-llama/Llama-2-7b-hf", "rtx3090", **job | {"autocast": "bf16"})
    assert same.peak_allocated_bytes < under_autocast.peak_allocated_bytes, "adapters and their states are bf16"
    with pytest.raises(VramplanError, match="differ in dtype"):
        vramplan.estimate("meta-llama/Llama-2-7b-hf", "rtx3090", lora_dtype="fp32", **job)
