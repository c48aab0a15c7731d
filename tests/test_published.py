"""Measured runs that others have published, with their settings known."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from vramplan.units import GiB


@pytest.mark.parametrize(("micro_batch_size", "measured_gib"), [(4, 67.46), (8, 67.461)])
def test_full_fine_tuning_of_mistral_on_an_a100(micro_batch_size: int, measured_gib: float) -> None:
    """torch.cuda.max_memory_allocated under transformers' Trainer: the foreach optimizer step is the peak.

    foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv, rows 10 and 12 (commit 876e2ed6f):
    pure bf16, adamw_torch, 4096 packed tokens, full checkpointing, FlashAttention-2, transformers 4.48, torch 2.4.
    """
    found = vramplan.estimate(
        "mistralai/Mistral-7B-v0.1",
        "a100-80gb",
        method="full",
        autocast="none",
        optimizer="adamw_torch",
        sequence_length=4096,
        attention="flash",
        micro_batch_size=micro_batch_size,
    )
    assert found.fits
    assert found.peak_phase == "optimizer"
    assert found.peak_allocated_bytes / GiB == pytest.approx(measured_gib, rel=5e-4)


def test_lora_on_a_24_gib_card() -> None:
    """Qwen2.5-7B-Instruct, LoRA rank 8, batch 1 x 16, 2048 tokens on an RTX 4090 D: 18 to 22 GB in nvidia-smi."""
    found = vramplan.suggest("Qwen/Qwen2.5-7B-Instruct", "rtx4090d", 16, lora_rank=8, sequence_length=2048)
    plan = next(plan for plan in found.plans if plan.micro_batch_size == 1)
    assert plan.gradient_accumulation_steps == 16
    assert 18e9 < plan.estimate.device_total_bytes < 22e9


MISTRAL: dict[str, Any] = {
    "lora_rank": 16,
    "lora_dropout": 0.1,
    "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "optimizer": "adamw_torch",
    "sequence_length": 4096,
    "attention": "flash",
    "loss": "sliced",
}
"""The adapters of the same file's rows, and transformers 4.48."""
OUTSIDE = {"version": 1, "backward_prefetch": "pre", "checkpoint_wraps_fsdp": True}
FSDP: dict[str, Any] = {"num_gpus": 2, "strategy": "fsdp", "reentrant": True, "fsdp": OUTSIDE}
"""Transformers 4.48 checkpoints FSDP's layers from outside."""
ON_HOST = FSDP | {"fsdp": OUTSIDE | {"loads_whole_model": False}}
"""And loads four bits on the host; they are packed in bf16."""


@pytest.mark.parametrize(
    ("job", "micro_batch_size", "measured_gib", "peak"),
    [
        ({"autocast": "none"}, 4, 24.871, "forward"),  # row 34: the loss copies the shifted logits, in forward
        ({"autocast": "none"}, 8, 36.082, "forward"),  # row 36
        ({"autocast": "none"} | FSDP, 2, 14.105, "backward"),  # row 35
        ({"autocast": "none"} | FSDP, 4, 20.452, "backward"),  # row 37
        ({"method": "qlora", "device_map": False}, 4, 15.249, "forward"),  # row 78: bf16 autocast
        ({"method": "qlora", "device_map": False}, 8, 26.461, "forward"),  # row 80
        ({"method": "qlora"} | ON_HOST, 2, 8.777, "backward"),  # rows 59 and 79
        ({"method": "qlora"} | ON_HOST, 4, 14.873, "backward"),  # rows 61 and 81
    ],
)
def test_adapters_of_mistral(job: dict[str, Any], micro_batch_size: int, measured_gib: float, peak: str) -> None:
    found = vramplan.estimate(
        "mistralai/Mistral-7B-v0.1", "a100-80gb", micro_batch_size=micro_batch_size, **MISTRAL, **job
    )
    assert found.peak_phase == peak
    assert found.peak_allocated_bytes / GiB == pytest.approx(measured_gib, rel=2e-4)


@pytest.mark.parametrize(("offload", "measured_gb"), [("none", 35.6), ("all", 19.6)])
def test_qlora_on_llama_70b_under_fsdp(offload: str, measured_gb: float) -> None:
    """What PEFT's documentation says of a card (docs/source/accelerate/fsdp.md), without naming the statistic."""
    sharded = ON_HOST | {"fsdp": ON_HOST["fsdp"] | {"use_orig_params": False}}  # fsdp_config_qlora.yaml
    found = vramplan.estimate(
        "meta-llama/Llama-2-70b-hf",
        "a100-80gb",
        method="qlora",
        optimizer="adamw_torch",
        attention="flash",
        loss="sliced",
        micro_batch_size=2,
        gradient_accumulation_steps=2,
        offload=offload,
        **sharded,
    )
    assert found.device_total_bytes / 1e9 == pytest.approx(measured_gb, rel=0.06)
