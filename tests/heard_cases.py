"""Models that hear beside a text, made small, and what traces of their classes say.

python -m tests.heard_cases     trace what has not been traced; write tests/cases/traced_heard.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, card_of
from tests.matrix_cases import SETTINGS
from tests.tiled_cases import TEXT
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job

FAMILIES: dict[str, dict[str, Any]] = {
    "voxtral": {
        "audio_token_id": 24,
        "text_config": {"model_type": "llama", "head_dim": 64, **TEXT},
        "audio_config": {
            "model_type": "voxtral_encoder",
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_attention_heads": 4,
            "num_hidden_layers": 6,
            "num_mel_bins": 80,
            "max_source_positions": 500,
        },
    },
    "qwen2_audio": {
        "audio_token_index": 24,
        "text_config": {"model_type": "qwen2", **TEXT},
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "d_model": 256,
            "encoder_ffn_dim": 1024,
            "encoder_attention_heads": 4,
            "encoder_layers": 6,
            "num_mel_bins": 80,
            "max_source_positions": 500,
        },
    },
}
"""Configuration of each."""
HEARD = {"sequence_length": 384}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {**HEARD, "checkpointing": "none", "vision": "train", "projector": "train"}),
    ("full-bf16", {**HEARD, "checkpointing": "full", "micro_batch_size": 2}),
    ("full-autocast", {**HEARD, "checkpointing": "none", "attention": "eager", "vision": "train"}),
    ("full-fp32", {**HEARD, "checkpointing": "full", "projector": "train"}),
    ("lora-bf16", {**HEARD, "checkpointing": "full", "vision": "lora", "projector": "lora", "micro_batch_size": 2}),
    ("lora-bf16", {**HEARD, "checkpointing": "none", "attention": "flash"}),
    ("lora-autocast", {**HEARD, "checkpointing": "none", "sounds": 2, "sequence_length": 640}),
    ("lora-autocast", {**HEARD, "checkpointing": "full", "micro_batch_size": 2, "audio_seconds": 45.0}),
    ("full-bf16", {"sounds": 0, "checkpointing": "none", "micro_batch_size": 2, "sequence_length": 200}),
    ("lora-autocast", {"sounds": 0, "checkpointing": "full", "sequence_length": 512}),
)
"""With sounds, then on text alone."""


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    return ModelSpec(name=family, model_type=family, config={"model_type": family, **FAMILIES[family]})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        for setting, given in JOBS:
            job = {**SETTINGS[setting], **given}
            if family == "qwen2_audio" and job.get("sounds", 1):  # hears 10 seconds, of the small model's 500 positions
                job["audio_seconds"] = 10.0 if job["checkpointing"] == "none" else 7.3
            yield family, complete_job(spec_for(family), card_of(), job)


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_heard.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
