"""Tensors that autograd saves: measured sizes, equal to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of, setting_of, spec_of
from vramplan.analytic.batch import make_batch
from vramplan.analytic.estimator import estimate
from vramplan.analytic.train_step import new_modules, run_forward
from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

H, F, A, G, R = 1024, 4096, 16, 4, 8  # hidden, feed-forward, heads, key/value heads, rank


def llama(layers: int, model_type: str = "llama", **config: Any) -> ModelSpec:
    return ModelSpec(
        name="test/llama",
        model_type=model_type,
        config={
            "hidden_size": H,
            "intermediate_size": F,
            "num_attention_heads": A,
            "num_key_value_heads": G,
            "num_hidden_layers": layers,
            "vocab_size": 1000,
            **config,
        },
    )


def saved_per_token(job: Job, tokens: int = 512, model_type: str = "llama") -> float:
    """Bytes per token that one more layer saves for backward, without the kernel's random state."""
    totals = []
    for layers in (3, 4):
        setting, _ = setting_of(llama(layers, model_type), job.model_copy(update={"sequence_length": tokens}))
        with no_cycle_collection():
            net = new_modules(setting)
            loss = run_forward(net, setting, "forward.0", make_batch(net.tape, setting, "forward.0", 1))
            live = {event for event in net.tape.events if event >= 0} - {~e for e in net.tape.events if e < 0}
            totals.append(
                sum(
                    net.tape.storages[number].num_bytes
                    for number in live
                    if net.tape.storages[number].what != "attention random state"
                )
            )
            del loss
    return (totals[1] - totals[0]) / tokens


def job(**settings: Any) -> Job:
    return Job(**{"loop": "plain", "checkpointing": "none", "sequence_length": 512, **settings})


GH = G * (H // A)
FULL = 20 * H + 4 * GH + 8 * F + 4 * A + 8


# Saved-tensor hooks on transformers' LlamaForCausalLM, 5.23: exact storages per layer and token.
@pytest.mark.parametrize(
    ("settings", "model_type", "expected"),
    [
        ({"method": "full", "autocast": "none"}, "llama", FULL),
        ({"method": "full", "autocast": "bf16"}, "llama", FULL),
        ({"method": "full", "autocast": "none"}, "qwen2", FULL),
        (
            {"method": "lora", "autocast": "none", "lora_dtype": "bf16"},
            "llama",
            16 * H + 4 * GH + 8 * F + 4 * A + 8 + 14 * R,
        ),
        (
            {"method": "lora", "autocast": "none", "lora_dtype": "bf16", "lora_targets": ("q_proj", "v_proj")},
            "llama",
            14 * H + 4 * GH + 6 * F + 4 * A + 8 + 4 * R,
        ),
        ({"method": "full", "autocast": "none", "checkpointing": "full"}, "llama", 2 * H),
    ],
    ids=["full", "full-autocast", "biases", "lora", "lora-q-v", "checkpointed"],
)
def test_a_layer_saves_as_much_as_transformers(settings: dict[str, Any], model_type: str, expected: int) -> None:
    assert saved_per_token(job(**settings), model_type=model_type) == expected


def test_dropout_costs_more_than_full_fine_tuning() -> None:
    with_dropout = saved_per_token(job(autocast="none", lora_dtype="bf16", lora_dropout=0.05))
    assert with_dropout > saved_per_token(job(method="full", autocast="none"))
    assert with_dropout == pytest.approx(67.18 * H, rel=0.002)  # traced with CUDA's one-byte masks


def test_fp32_adapters_without_autocast_keep_an_fp32_input_each() -> None:
    assert saved_per_token(job(autocast="none")) == pytest.approx(77.29 * H, rel=0.002)


# Qwen2.5-7B-Instruct, LoRA rank 8 all-linear, traced with transformers 5.23: the batch itself (ids and labels)
# and flash attention's random state were not counted there.
@pytest.mark.parametrize(
    ("checkpointing", "traced", "num_random_states"), [("full", 19_652_256_768, 0), ("none", 33_005_872_128, 28)]
)
def test_anchor(checkpointing: str, traced: int, num_random_states: int) -> None:
    result = estimate(
        spec_of("Qwen/Qwen2.5-7B-Instruct"),
        Job(checkpointing=checkpointing, loop="plain"),  # type: ignore[arg-type]
        card_of("a100-80gb"),
    )
    not_counted = 2 * 16384 + num_random_states * 2 * 512
    assert result.peak_tensor_bytes == traced + not_counted
    assert result.peak_phase == "backward"
    assert result.num_parameters == 7_615_616_512
    assert result.num_trainable_parameters == 20_185_088


def test_only_a_named_head_gets_an_adapter() -> None:
    """PEFT's all-linear excludes the output head; as a named target it gets an adapter."""
    spec = spec_of("Qwen/Qwen2.5-0.5B")
    plain, named = (
        estimate(spec, Job(lora_targets=targets, sequence_length=256), card_of())
        for targets in (("q_proj",), ("q_proj", "lm_head"))
    )
    assert named.num_trainable_parameters - plain.num_trainable_parameters == 8 * (896 + 151936)
