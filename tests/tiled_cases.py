"""Models that see tiles by SigLIP's tower, made small, and what traces of their classes say: Aya and Granite Vision.

python -m tests.tiled_cases     trace what has not been traced; write tests/cases/traced_tiled.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT
from tests.matrix_cases import SETTINGS
from tests.seeing_cases import JOBS
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

TEXT = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "image_size": 112,
    "patch_size": 14,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "aya_vision": (
        "aya_vision",
        {
            "image_token_index": 7,
            "alignment_intermediate_size": 1792,
            "text_config": {"model_type": "cohere2", **TEXT},
            "vision_config": {**TOWER, "vision_use_head": False},
        },
    ),
    "granite_vision": (
        "llava_next",
        {
            "image_token_index": 7,
            "tie_word_embeddings": True,
            "vision_feature_layer": [-6, -4, -3, -1],
            "vision_feature_select_strategy": "full",
            "image_grid_pinpoints": [[112, 224], [224, 112], [224, 224]],
            "text_config": {"model_type": "granite", "tie_word_embeddings": True, **TEXT},
            "vision_config": TOWER,
        },
    ),
}
"""Type and configuration of each."""


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    model_type, parts = FAMILIES[family]
    return ModelSpec(name=family, model_type=model_type, config={"model_type": model_type, **parts})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        for setting, given in JOBS:
            yield family, Job(**{**SETTINGS[setting], **given})


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_tiled.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
