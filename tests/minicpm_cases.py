"""MiniCPM-V 4.6 and 4.7 made small, and what traces of their classes say: one view and slices, both ways of merging.

python -m tests.minicpm_cases     trace what has not been traced; write tests/cases/traced_minicpm.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, spec_of
from tests.matrix_cases import SETTINGS, VOCABULARY
from tests.mixer_cases import DELTA
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

PUBLISHED = "openbmb/MiniCPM-V-4.6"
FAMILIES: dict[str, dict[str, Any]] = {
    "minicpmv4_6": {},
    "minicpmv4_6, 4x": {"downsample_mode": "4x"},
    "minicpmv4_7": {"model_type": "minicpmv4_7"},
}
"""What differs from the published configuration of 4.6."""
ONE, CUT = (
    {"images": 1, "image_size": (400, 300), "sequence_length": 384},
    {"images": 1, "image_size": (900, 500), "sequence_length": 1024},
)
"""An image of one view, and one of an overview and two slices."""
BOTH = {"vision": "train", "projector": "train"}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {**ONE, **BOTH, "checkpointing": "none"}),
    ("full-bf16", {**CUT, **BOTH, "checkpointing": "full", "micro_batch_size": 2}),
    ("full-autocast", {**CUT, **BOTH, "checkpointing": "none", "attention": "eager"}),
    ("full-fp32", {**CUT, "checkpointing": "full", "projector": "train"}),
    ("full-bf16", {**CUT, "checkpointing": "none"}),
    ("lora-bf16", {**CUT, "checkpointing": "full", "vision": "lora", "projector": "lora", "micro_batch_size": 2}),
    ("lora-bf16", {**CUT, "checkpointing": "none", "attention": "flash"}),
    ("lora-bf16", {**ONE, "checkpointing": "none", "attention": "eager", "vision": "lora"}),
    ("lora-autocast", {**CUT, "checkpointing": "none", "images": 2, "sequence_length": 2048}),
    ("lora-autocast", {**ONE, "checkpointing": "full", "images": 3, "sequence_length": 1200}),
    ("full-bf16", {"images": 0, "checkpointing": "none", "micro_batch_size": 2, "sequence_length": 200}),
)
"""With images, then on text alone."""


OF_4_7 = (0, 4, 7, 9, 10)
"""Jobs of 4.7, whose tower is the same."""


def spec_for(family: str) -> ModelSpec:
    """The published model with few layers and narrow ones."""
    spec = spec_of(PUBLISHED)
    text = {**spec.config["text_config"], **DELTA, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    vision = {**spec.config["vision_config"], "hidden_size": 288, "intermediate_size": 512, "num_attention_heads": 4}
    vision |= {"num_hidden_layers": 8}
    parts = {"text_config": text, "vision_config": vision, "insert_layer_id": 3, "image_token_id": 7}
    config = {**spec.config, **parts, **FAMILIES[family]}
    return spec.model_copy(update={"name": family, "model_type": config["model_type"], "config": config})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        for setting, given in [JOBS[number] for number in OF_4_7] if family == "minicpmv4_7" else JOBS:
            yield family, Job(**{**SETTINGS[setting], **given})


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_minicpm.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
