"""torchtune, torchtitan and NeMo Automodel, which define their own layers: traced peaks, and torchtune's loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.helpers import card_of, spec_of
from vramplan.analytic import estimator
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

MIB = 1 << 20
TORCHTUNE = {"dtype": "bf16", "autocast": "none", "lora_dtype": "bf16", "loop": "plain", "loss": "sections"}
TRACED = [
    ("meta-llama/Llama-3.2-1B", "lora", 6053),
    ("meta-llama/Llama-3.2-1B", "full", 10750),
    ("Qwen/Qwen2.5-0.5B", "full", 6975),
    ("Qwen/Qwen2.5-3B", "full", 24607),
    ("meta-llama/Llama-2-7b-hf", "lora", 15080),
    ("meta-llama/Llama-2-7b-hf", "full", 51953),
    ("mistralai/Mistral-7B-v0.1", "lora", 16422),
    ("mistralai/Mistral-7B-v0.1", "full", 55952),
]
"""Peak MiB allocated by torch: builders of torchtune 0.6.1 with CEWithChunkedOutputLoss and its activation
checkpointing, traced as a user's model, whose tables of positions are bf16 as well; two samples of 2048 tokens, fused
AdamW, LoRA of rank 16 on all layers."""


@pytest.mark.parametrize(("model", "method", "mib"), TRACED)
def test_torchtunes_own_models(model: str, method: str, mib: int) -> None:
    own = {**TORCHTUNE, "layers_of": "torchtune"}
    job = Job(method=method, lora_rank=16, micro_batch_size=2, sequence_length=2048, **own)
    result = estimator.estimate(spec_of(model), job, card_of("h200"))
    assert abs(result.peak_allocated_bytes / (mib * MIB) - 1) < 0.02


TITAN = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
    "num_attention_heads": 16, "max_position_embeddings": 8192, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
"""Dimensions of the traced llama3 of torchtitan, with transformers' keys."""


@pytest.mark.parametrize(
    ("heads", "checkpointing", "batch", "length", "mib"),
    [
        (4, "full", 4, 1024, 8091),
        (4, "none", 1, 2048, 8993),
        (4, "none", 4, 1024, 11481),
        (16, "full", 1, 2048, 8353),
        (16, "none", 4, 1024, 12345),
    ],
)
def test_torchtitans_own_layers(heads: int, checkpointing: str, batch: int, length: int, mib: int) -> None:
    """torchtitan 0.2.2's llama3 on one GPU: fp32 weights under bf16 autocast, summed cross-entropy."""
    spec = ModelSpec(name="titan", model_type="llama", config={**TITAN, "num_key_value_heads": heads})
    job = Job(
        method="full",
        dtype="fp32",
        loop="plain",
        checkpointing=checkpointing,
        micro_batch_size=batch,
        sequence_length=length,
    )
    result = estimator.estimate(spec, job, card_of("h200"))
    assert abs(result.peak_allocated_bytes / (mib * MIB) - 1) < 0.005


SMALL = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"micro_batch_size": 3, "sequence_length": 100},
        {"method": "full", "checkpointing": "none", "micro_batch_size": 2},
        {"method": "full", "dtype": "fp32", "autocast": "bf16", "loop": "trainer", "micro_batch_size": 2},
    ],
)
def test_the_loss_against_the_trace(settings: dict[str, Any]) -> None:
    trace = pytest.importorskip("vramplan.torch_backend.trace.trace")
    spec = ModelSpec(name="small", model_type="llama", config=SMALL)
    job = Job(**{**TORCHTUNE, "sequence_length": 256, **settings})
    analytic, traced = estimator.estimate(spec, job, card_of()), trace.estimate(spec, job, card_of())
    assert abs(analytic.peak_tensor_bytes / traced.peak_tensor_bytes - 1) < 0.002


@pytest.mark.parametrize(
    ("model", "mib"),
    [("meta-llama/Llama-3.2-1B", 14072.96), ("Qwen/Qwen2.5-0.5B", 9832.48), ("Qwen/Qwen3-0.6B", 11578.69)],
)
def test_nemo_automodels_own_models(model: str, mib: float) -> None:
    """NeMo Automodel 0.5.0: its classes with transformers' norms and rotary tables, its MaskedCrossEntropy, the outputs
    kept until backward is over; two samples of 1024 tokens, torch's AdamW."""
    job = Job(
        method="full",
        dtype="bf16",
        autocast="none",
        loop="plain",
        keeps_outputs=True,
        optimizer="adamw_torch",
        checkpointing="none",
        micro_batch_size=2,
        sequence_length=1024,
    )
    result = estimator.estimate(spec_of(model), job, card_of())
    assert abs(result.peak_allocated_bytes / (mib * MIB) - 1) < 1e-4


def test_torchtunes_adapters_leave_embeddings_without_a_gradient() -> None:
    """Its loop asks for no gradient of the inputs, of which a plain loop's last loss would keep two."""
    job = Job(method="lora", lora_rank=16, micro_batch_size=2, sequence_length=2048, **TORCHTUNE)
    spec, card = spec_of("llama-2-7b-hf"), card_of("h200")
    without = estimator.estimate(spec, job, card).phases
    training = StepSpec.training
    with patch.object(StepSpec, "training", lambda self: replace(training(self), input_needs_grad=True)):
        asked = estimator.estimate(spec, job.model_copy(update={"lora_dropout": 1e-9}), card).phases
    assert asked["optimizer"] - without["optimizer"] >= 2 * 2 * 2048 * 4096 * 2
    assert asked["backward"] >= without["backward"]
