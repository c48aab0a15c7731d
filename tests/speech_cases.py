"""Models that read waveforms, made small, and what traces of their classes say.

python -m tests.speech_cases     trace what has not been traced; write tests/cases/traced_speech.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, card_of
from tests.matrix_cases import SETTINGS
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job

SMALL = {"vocab_size": 40, "num_hidden_layers": 6}
LARGE = {
    **SMALL,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
}
"""Norms behind every convolution, and before attention and feed-forward."""
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("wav2vec2", SMALL),
    "wav2vec2, stable": ("wav2vec2", {**LARGE, "mask_time_prob": 0.075}),
    "hubert": ("hubert", {**SMALL, "feat_proj_layer_norm": False, "apply_spec_augment": False}),
    "hubert, stable": (
        "hubert",
        {**LARGE, "mask_feature_prob": 0.1, "ctc_loss_reduction": "mean", "ctc_zero_infinity": True},
    ),
}
CLASSES = {"task": "sequence_classification", "num_labels": 12}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 3}),
    ("full-bf16", {"checkpointing": "full", "micro_batch_size": 2, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "none", "micro_batch_size": 2, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "full", "micro_batch_size": 4}),
    ("full-autocast", {"checkpointing": "none", "micro_batch_size": 2, "batches": "padded"}),
    ("full-autocast", {"checkpointing": "none", "micro_batch_size": 2, "freeze_feature_encoder": False}),
    ("full-autocast", {"checkpointing": "full", "micro_batch_size": 3, "freeze_feature_encoder": False}),
    ("full-autocast", {**CLASSES, "checkpointing": "none", "micro_batch_size": 2}),
    ("full-fp32", {"checkpointing": "none", "micro_batch_size": 2, "sequence_length": 200}),
    ("full-fp32", {**CLASSES, "checkpointing": "full", "micro_batch_size": 4, "batches": "padded"}),
    ("lora-bf16", {"checkpointing": "none", "micro_batch_size": 2, "lora_targets": ("q_proj", "v_proj")}),
    ("lora-autocast", {"checkpointing": "full", "micro_batch_size": 2}),
    ("lora-autocast", {"checkpointing": "none", "micro_batch_size": 2, "freeze_feature_encoder": False}),
    ("lora-fp32", {"checkpointing": "none", "autocast": "bf16", "gradient_accumulation_steps": 2}),
    ("lora-fp32", {**CLASSES, "checkpointing": "full", "autocast": "bf16", "micro_batch_size": 4}),
)


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    model_type, config = FAMILIES[family]
    return ModelSpec(name=family, model_type=model_type, config={"model_type": model_type, **config})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs, of five seconds of sound."""
    for family in FAMILIES:
        for setting, given in JOBS:
            job = {"audio_seconds": 5.0, **SETTINGS[setting], **given}
            yield family, complete_job(spec_for(family), card_of(), job)


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_speech.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
