"""verl's loss, and gradients that are reduced in another dtype than weights are gathered in."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from tests.helpers import card_of
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError
from vramplan.inputs.model_spec import ModelSpec

VOCABULARY, TOKENS = 32_000, 1024
SPEC = ModelSpec(
    name="small",
    model_type="llama",
    config={
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
)
STEP = {
    "sequence_length": TOKENS,
    "batches": "packed",
    "loop": "plain",
    "loss": "log_probs",
    "optimizer": "adamw_torch",
}
FSDP = {"strategy": "fsdp", "num_gpus": 2, "attention": "flash", "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    "given",
    [
        {"method": "full", "dtype": "fp32", "autocast": "bf16"},
        {"method": "full", "autocast": "none", "checkpointing": "none"},
        {"lora_dtype": "bf16", "autocast": "none", "gradient_accumulation_steps": 2},
        {"method": "full", "autocast": "none", "verl": {"logits": "copied"}},
    ],
    ids=["full", "bf16", "lora", "copied"],
)
def test_against_a_trace(given: dict[str, Any]) -> None:
    """The same operations on fake tensors hold as much."""
    pytest.importorskip("transformers")
    job = {**STEP, **given, "attention": "eager", "sequence_length": 256}
    found, traced = (vramplan.estimate(SPEC, card_of("h100"), by=by, **job) for by in ("analytic", "trace"))
    assert found.peak_allocated_bytes == pytest.approx(traced.peak_allocated_bytes, rel=0.005)


@pytest.mark.parametrize(("logits", "num_bytes"), [("copied", 4), ("undivided", 2)])
def test_bytes_for_a_logit(logits: str, num_bytes: int) -> None:
    """Half-precision logits, twice if divided; their gradient overwrites them."""
    job = {**STEP, "method": "full", "autocast": "none", "attention": "flash", "verl": {"logits": logits}}
    peaks = [
        vramplan.estimate(SPEC, card_of("h100"), **job, micro_batch_size=size).peak_allocated_bytes for size in (4, 8)
    ]
    assert (peaks[1] - peaks[0]) / (4 * TOKENS * VOCABULARY) == pytest.approx(num_bytes, rel=0.05)


def test_layer_norms_run_in_fp32_under_verls_autocast() -> None:
    """It is on with bf16 weights too (workers/engine/fsdp/transformer_impl.py: forward_step)."""
    pytest.importorskip("transformers")
    short = {
        "method": "full",
        "autocast": "none",
        "attention": "eager",
        "checkpointing": "none",
        "sequence_length": 256,
    }
    job: dict[str, Any] = {**STEP, **short}
    found, traced = (
        vramplan.estimate("pythia-160m", card_of("h100"), by=by, **job).phases["forward"]
        for by in ("analytic", "trace")
    )
    assert found == pytest.approx(traced, rel=0.001)


def test_gradients_reduced_in_fp32() -> None:
    """FSDP 1 casts the whole gradient of a unit in the stream that reduces it (_runtime_utils.py).

    The root, which has the embedding and the head, is the largest unit: its cast takes four bytes a weight.
    """
    job = {**STEP, **FSDP, "method": "full", "dtype": "fp32", "autocast": "bf16"}
    plain, cast = (
        vramplan.estimate(SPEC, card_of("h100"), **job, fsdp={"version": 1, "reduce_dtype": dtype})
        for dtype in ("bf16", "fp32")
    )
    same = vramplan.estimate(SPEC, card_of("h100"), **job, fsdp={"version": 1})
    assert plain.timeline is not None
    assert cast.timeline is not None
    assert same.timeline is not None
    assert list(plain.timeline.live_bytes()) == list(same.timeline.live_bytes())
    root = 2 * VOCABULARY * 128 + 128
    casts = [kind.num_bytes for kind in cast.timeline.kinds if "cast to be reduced" in kind.label]
    assert max(casts) == 4 * root
    assert not [kind for kind in plain.timeline.kinds if "cast to be reduced" in kind.label]
    assert cast.device_total_bytes > plain.device_total_bytes


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="reduce_dtype is modelled for FSDP version 1"):
        vramplan.estimate(SPEC, card_of("h100"), **{**STEP, "loss": "standard"}, **FSDP, fsdp={"reduce_dtype": "fp32"})
    with pytest.raises(ConfigError, match="Triton"):
        vramplan.estimate(
            SPEC, "apple-m1-max-64gb", **{**STEP, "dtype": "fp32", "autocast": "none", "attention": "eager"}
        )


def test_the_kernel_on_a_gpu_is_a_package_of_its_own() -> None:
    losses = pytest.importorskip("vramplan.torch_backend.model.losses")
    with pytest.raises(MissingDependencyError, match="pip install flash-attn"):
        losses.real_log_probs("small")
