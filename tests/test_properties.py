"""Properties of any estimate, and relations between two."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import card_of, spec_of
from vramplan.analytic.estimator import estimate
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate

SPEC = spec_of("HuggingFaceTB/SmolLM2-135M")


@lru_cache(maxsize=64)
def estimate_of(**job: Any) -> Estimate:
    return estimate(SPEC, Job(**{"sequence_length": 256, **job}), card_of())


JOBS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["full", "lora"]),
        "checkpointing": st.sampled_from(["none", "full"]),
        "attention": st.sampled_from(["sdpa", "eager", "flash"]),
        "loss": st.sampled_from(["standard", "sections", "liger", "chunked"]),
        "batches": st.sampled_from(["unpadded", "padded", "packed"]),
        "optimizer": st.sampled_from(["adamw_torch_fused", "adamw_torch", "sgd", "adafactor"]),
        "loop": st.sampled_from(["trainer", "plain"]),
        "gradient_accumulation_steps": st.sampled_from([1, 3]),
    }
)


@settings(max_examples=25, deadline=None)
@given(JOBS, st.integers(1, 6), st.integers(32, 700))
def test_more_never_needs_less(job: dict[str, Any], micro: int, length: int) -> None:
    base = estimate_of(**job, micro_batch_size=micro, sequence_length=length)
    assert (
        estimate_of(**job, micro_batch_size=micro + 1, sequence_length=length).peak_tensor_bytes
        >= base.peak_tensor_bytes
    )
    longer = estimate_of(**job, micro_batch_size=micro, sequence_length=length + 64)
    assert longer.peak_tensor_bytes >= base.peak_tensor_bytes
    assert base.peak_tensor_bytes <= base.peak_allocated_bytes <= base.peak_reserved_bytes < base.device_total_bytes
    assert sum(base.by_category().values()) == base.device_total_bytes
    assert max(base.phases[name] for name in ("forward", "backward", "optimizer")) == base.peak_allocated_bytes
    assert base.phases["loaded"] < base.phases["eval"] <= base.peak_allocated_bytes + base.phases["loaded"]


@settings(max_examples=15, deadline=None)
@given(JOBS)
def test_changes_that_save_memory(job: dict[str, Any]) -> None:
    def peak(**change: Any) -> int:
        return estimate_of(**{**job, **change}, micro_batch_size=4).peak_tensor_bytes

    assert peak(checkpointing="full") <= peak(checkpointing="none")
    counters = 512 * 700  # the fused kernel has a step counter for each weight on the GPU
    assert peak(optimizer="adamw_torch_fused") <= peak(optimizer="adamw_torch") + counters
    assert peak(optimizer="sgd") <= peak(optimizer="adamw_torch_fused")
    assert peak(loss="liger") <= peak(loss="standard")
    assert peak(batches="unpadded") <= peak(batches="padded")
    assert peak(gradient_accumulation_steps=1) <= peak(gradient_accumulation_steps=2)
    assert peak(method="lora", lora_dropout=0.0) <= peak(method="lora", lora_dropout=0.1)
    assert peak(method="lora", lora_rank=4) <= peak(method="lora", lora_rank=64)


def test_states_follow_the_stored_dtype() -> None:
    """bf16 weights make bf16 moments: 4 bytes for each weight, not 8."""
    states = {
        dtype: estimate_of(method="full", dtype=dtype).by_category()["optimizer_state"] for dtype in ("bf16", "fp32")
    }
    assert states["bf16"] == pytest.approx(4 * 134_515_008, rel=2e-3)
    assert states["fp32"] == pytest.approx(8 * 134_515_008, rel=2e-3)


def test_gradients_live_through_the_next_forward_only_when_accumulating() -> None:
    once, twice = (estimate_of(method="full", gradient_accumulation_steps=steps) for steps in (1, 2))
    grown = twice.phases["forward"] - once.phases["forward"]
    assert grown == pytest.approx(2 * 134_515_008, rel=0.05)


def test_data_parallel_doubles_the_gradients() -> None:
    alone, many = estimate_of(method="full"), estimate_of(method="full", num_gpus=4)
    buckets = many.by_category()["communication"]
    assert "communication" not in alone.by_category()
    assert buckets == pytest.approx(2 * 134_515_008, rel=1e-3)
    assert many.peak_tensor_bytes - alone.peak_tensor_bytes == pytest.approx(buckets, rel=1e-3)


def test_the_published_inference_and_training_sizes() -> None:
    """Qwen2.5-7B on a 24 GB GPU: about 14 GB loaded, 15 GB in inference, 18 to 22 GB in training (nvidia-smi)."""
    result = estimate(spec_of("Qwen/Qwen2.5-7B-Instruct"), Job(), card_of("rtx4090d"))
    context = result.by_category()["context"]
    assert 14e9 < result.phases["loaded"] < 15.9e9
    assert 18e9 < result.device_total_bytes < 22e9
    assert result.fits
    assert result.phases["eval"] + context < result.device_total_bytes
