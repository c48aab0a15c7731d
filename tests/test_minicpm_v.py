"""MiniCPM-V 4.6 and 4.7 and MiniCPM-OCR: refused for their images, traced on text alone if that is asked for."""

from pathlib import Path

import pytest

import vramplan
from vramplan.errors import UnsupportedError
from vramplan.inputs.model_spec import ModelSpec

TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 500,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
}


CLASSES = {"minicpmv4_6": "MiniCPMV4_6", "minicpmv4_7": "MiniCPMV4_7", "minicpm_ocr": "MiniCPMOcr"}


def small(model_type: str) -> ModelSpec:
    config = {"model_type": model_type, "text_config": TEXT, "vision_config": VISION, "insert_layer_id": 0}
    config["architectures"] = [f"{CLASSES[model_type]}ForConditionalGeneration"]
    return ModelSpec(name="mine", model_type=model_type, config=config)


@pytest.mark.parametrize("model_type", CLASSES)
def test_no_answer_leaves_the_images_out_unasked(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match=r"tower.*not described.*--by trace.*Qwen3\.5"):
        vramplan.estimate(small(model_type), "h200")


def test_a_towers_table_does_not_bound_the_text() -> None:
    """The tower has 16 positions of patches; the language model's are rotary."""
    pytest.importorskip("transformers")
    estimate = vramplan.estimate(small("minicpmv4_6"), "h200", by="trace", sequence_length=64)
    assert estimate.job.sequence_length == 64
    with pytest.raises(UnsupportedError, match=r"vision tower of minicpmv4_6"):
        vramplan.estimate(small("minicpmv4_6"), "h200", by="trace", sequence_length=64, images=1)


def test_other_models_with_a_tower_are_not_traced_on_text_alone_unasked(tmp_path: Path) -> None:
    """A trace of idefics2 leaves its images out: that is no answer to whoever trains it on them."""
    (tmp_path / "config.json").write_text('{"model_type": "idefics2", "vision_config": {}, "text_config": {}}')
    with pytest.raises(UnsupportedError, match=r"tower and processor are not described; .*by=trace traces it on text"):
        vramplan.estimate(str(tmp_path), "h100", sequence_length=128)
