"""Tasks together: settings of one trainer with those of another, and models beside the one that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import spec_of
from vramplan import estimate
from vramplan.errors import VramplanError

GRPO: dict[str, Any] = {
    "task": "grpo", "sequence_length": 512, "prompt_length": 128, "num_generations": 2, "micro_batch_size": 2,
}  # fmt: skip
ASLEEP = {"generate_with": "vllm_sleep", "vllm_share": 0.5, "vllm_max_length": 1024}
SWIFT = {**GRPO, **ASLEEP, "loss": "logits_to_keep"}
GKD = {"task": "gkd", "teacher": "qwen2.5-1.5b", "sequence_length": 256}
SEEING = "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize(
    ("gpu", "settings", "said"),
    [
        ("h100", {**GKD, "teacher": SEEING}, "vision-language model as teacher"),
        ("h100", {**GKD, "reward_model": "qwen2.5-0.5b"}, "no meaning without task=grpo, rloo or ppo"),
        ("h100", {**GKD, "batches": "flattened"}, "pads samples"),
        ("v100-32gb", {**GKD, "teacher": "Qwen/Qwen3-30B-A3B"}, "below compute capability 8.0"),
        ("v100-32gb", {**GRPO, "reward_model": "Qwen/Qwen3-30B-A3B"}, "below compute capability 8.0"),
        ("h100", {**SWIFT, "reward_model": "llama-3.2-1b"}, "with loss=logits_to_keep"),
        ("h100", {**GRPO, **ASLEEP, "rollout_offload": "model"}, "are ms-swift's"),
        ("h100", {"task": "reward", "loss": "liger"}, "use loss=standard"),
    ],
)
def test_what_no_trainer_does_is_refused(gpu: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as refused:
        estimate("qwen2.5-0.5b", gpu, **settings)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {**GRPO, "loss": "liger"},
        {"task": "ppo", "sequence_length": 512, "prompt_length": 128},
        {"task": "dpo", "loss": "concatenated", "sequence_length": 512},
        {"task": "dpo", "loss": "concatenated_states", "sequence_length": 512},
    ],
)
def test_vision_language_models_on_text(settings: dict[str, Any]) -> None:
    """Their tower is loaded, and idle."""
    found = estimate(SEEING, "h100", images=0, **settings)
    assert found.num_parameters > 3_000_000_000


@pytest.mark.parametrize("settings", [GRPO, {"task": "ppo", "sequence_length": 512, "prompt_length": 128}])
def test_a_reward_model_in_fp16_needs_no_gradient_scaler(settings: dict[str, Any]) -> None:
    alone, scored = (estimate("qwen2.5-0.5b", "t4", reward_model=model, **settings) for model in (None, "qwen2.5-0.5b"))
    assert scored.peak_allocated_bytes > alone.peak_allocated_bytes


def test_prompts_of_vision_language_models_have_no_logits_in_ms_swifts_grpo() -> None:
    short, long = (
        estimate(
            SEEING, "h100", images=0, **{**GRPO, "loss": "logits_to_keep", "prompt_length": length}
        ).peak_allocated_bytes
        for length in (400, 128)
    )
    assert short < long


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("teacher", {"task": "gkd", "sequence_length": 128, "generated_by": "none"}),
        ("reward_model", {**GRPO, "sequence_length": 256}),
    ],
)
def test_a_folder_that_changes_is_read_again(tmp_path: Path, field: str, settings: dict[str, Any]) -> None:
    """A second model's folder within one process, as a notebook or a server that goes on has it."""
    spec = spec_of("qwen2.5-0.5b")
    loaded = []
    for layers in (4, 8):
        config = {"model_type": spec.model_type, **spec.config, "num_hidden_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(config))
        loaded.append(estimate("qwen2.5-0.5b", "h100", **settings, **{field: str(tmp_path)}).phases["loaded"])
    hidden, wide, kv = 896, 4864, 128
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * wide
    assert loaded[1] - loaded[0] == pytest.approx(4 * 2 * layer, rel=0.02)
