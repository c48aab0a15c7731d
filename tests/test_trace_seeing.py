"""Models that see and that no block describes: the real class runs on fake tensors, tower and all."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")

from tests.helpers import card_of
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.trace import trace

FEW = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
TEXT = {**FEW, **HEADS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6}
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
SEEING: dict[str, dict[str, Any]] = {
    "llama4": {
        "text_config": {**TEXT, "intermediate_size_mlp": 256, "num_local_experts": 2},
        "vision_config": {
            **TOWER,
            "image_size": 336,
            "vision_output_dim": 128,
            "projector_input_dim": 128,
            "projector_output_dim": 128,
            "intermediate_size": 256,
        },
        "image_token_index": 7,
    },
    "gemma4": {
        "text_config": {
            **TEXT,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "global_head_dim": 64,
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {**TOWER, "num_key_value_heads": 4, "head_dim": 16, "global_head_dim": 16},
        "image_token_id": 7,
        "video_token_id": 8,
        "audio_token_id": 9,
    },
    "phi4_multimodal": {
        **FEW,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vision_config": {**TOWER, "image_token_id": 7},
        "audio_config": {"hidden_size": 64, "num_blocks": 1, "num_attention_heads": 4, "audio_token_id": 8},
    },
}
"""Small ones; Gemma 3n's tower needs the package timm."""


def test_a_video_is_seen() -> None:
    """Gemma 4's frames, each a small image."""
    spec = ModelSpec(name="gemma4", model_type="gemma4", config=SEEING["gemma4"])
    jobs = (Job(videos=1, frames=count, image_size=(600, 400), sequence_length=1024) for count in (2, 6))
    few, many = (trace.estimate(spec, job, card_of()) for job in jobs)
    assert few.peak_allocated_bytes < many.peak_allocated_bytes
    assert many.image_tokens_per_sample == 6 * (60 + 2 + 7) - 1


@pytest.mark.one_of(3)
@pytest.mark.parametrize("model_type", SEEING)
def test_images_are_seen(model_type: str) -> None:
    """Two images cost more than one, one more than none; trained or not, the tower is counted."""
    spec = ModelSpec(name=model_type, model_type=model_type, config=SEEING[model_type])
    common = {"method": "full", "vision": "train", "projector": "train", "checkpointing": "none"}
    jobs = (Job(**common, images=count, image_size=(600, 400), sequence_length=2560) for count in (0, 1, 2))
    none, one, two = (trace.estimate(spec, job, card_of()) for job in jobs)
    assert none.peak_allocated_bytes < one.peak_allocated_bytes < two.peak_allocated_bytes
    assert two.image_tokens_per_sample == 2 * one.image_tokens_per_sample > 0
    assert none.num_vision_parameters == one.num_vision_parameters > 0


@pytest.mark.full
@pytest.mark.parametrize("attention", ["sdpa", "flash"])
def test_a_padded_batch_of_images_keeps_its_mask(attention: str) -> None:
    """Models of images read their mask's values, all ones, which is not what a padded batch has."""
    from tests.matrix_cases import spec_for
    from vramplan import estimate

    job = {"images": 1, "image_size": (224, 224), "sequence_length": 256, "micro_batch_size": 4, "attention": attention}

    def peaks(by: str, batches: str) -> dict[str, int]:
        return dict(estimate(spec_for("qwen2_vl"), "h100", by=by, batches=batches, **job).phases)

    traced, by_hand = peaks("trace", "padded"), peaks("analytic", "padded")
    assert traced["backward"] > peaks("trace", "unpadded")["backward"]
    assert all(traced[phase] == pytest.approx(by_hand[phase], rel=0.0005) for phase in traced)
