"""Encoders of text, images and sound, made small, and what traces of their classes say.

python -m tests.encoder_cases     trace what has not been traced; write tests/cases/traced_encoders.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, card_of
from tests.matrix_cases import SETTINGS, other_spec
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job

GEMMA = "gemma3_text, both ways"
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eurobert": ("EuroBERT/EuroBERT-610m", {}),
    "eurobert, first token": ("EuroBERT/EuroBERT-210m", {"classifier_pooling": "bos"}),
    "mpnet": ("microsoft/mpnet-base", {}),
    "gte": ("alibaba-nlp-community/gte-multilingual-base", {}),
    "gte, no kinds of sentence": ("Alibaba-NLP/gte-base-en-v1.5", {}),
    GEMMA: ("google/embeddinggemma-300m", {"num_hidden_layers": 8, "vocab_size": 2048, "sliding_window": 100}),
    "nomic_bert": ("nomic-ai/nomic-embed-text-v1.5", {}),
}
"""The shipped model that is shortened, and what is changed besides."""
TEXT_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 3, "sequence_length": 200}),
    ("full-bf16", {"checkpointing": "full", "sequence_length": 512, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "none", "sequence_length": 192, "micro_batch_size": 2, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "full", "sequence_length": 384, "micro_batch_size": 2}),
    ("full-fp32", {"checkpointing": "none", "sequence_length": 256, "micro_batch_size": 2}),
    ("lora-bf16", {"checkpointing": "full", "sequence_length": 200, "micro_batch_size": 3}),
    ("lora-bf16", {"checkpointing": "none", "sequence_length": 256, "micro_batch_size": 2, "batches": "padded"}),
    ("lora-autocast", {"checkpointing": "none", "sequence_length": 256, "gradient_accumulation_steps": 2}),
    ("lora-autocast", {"checkpointing": "full", "sequence_length": 256, "micro_batch_size": 2, "batches": "padded"}),
    ("full-autocast", {"checkpointing": "none", "sequence_length": 256, "task": "sequence_classification"}),
    ("lora-autocast", {"checkpointing": "full", "sequence_length": 256, "task": "token_classification"}),
    ("full-bf16", {"checkpointing": "none", "sequence_length": 128, "micro_batch_size": 4, "task": "reranker"}),
    ("full-autocast", {"checkpointing": "none", "sequence_length": 128, "micro_batch_size": 4, "task": "embedding"}),
    ("lora-autocast", {"checkpointing": "none", "sequence_length": 128, "micro_batch_size": 4, "task": "embedding"}),
)
EMBEDS = {"task": "embedding", "sequence_length": 128, "micro_batch_size": 4}
GEMMA_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {**EMBEDS, "checkpointing": "none"}),
    ("full-autocast", {**EMBEDS, "checkpointing": "full", "micro_batch_size": 8}),
    ("full-autocast", {**EMBEDS, "checkpointing": "none", "attention": "eager"}),
    ("full-fp32", {**EMBEDS, "checkpointing": "none", "negatives": 1}),
    ("lora-bf16", {**EMBEDS, "checkpointing": "none", "pooling": "lasttoken"}),
    ("lora-autocast", {**EMBEDS, "checkpointing": "none"}),
    ("lora-autocast", {**EMBEDS, "checkpointing": "full", "sequence_length": 256}),
)
"""EmbeddingGemma's, which trains for embeddings alone."""
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit, classes": ("google/vit-base-patch16-224-in21k", {}),
    "dinov2": ("facebook/dinov2-base", {}),
    "dinov2, gated": ("facebook/dinov2-giant", {}),
    "dinov2_with_registers": ("facebook/dinov2-with-registers-base", {}),
    "dinov3_vit": ("facebook/dinov3-vitb16-pretrain-lvd1689m", {}),
    "dinov3_vit, gated": ("facebook/dinov3-vith16plus-pretrain-lvd1689m", {}),
}
SEEN = {"task": "image_classification", "num_labels": 100}
IMAGE_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {**SEEN, "checkpointing": "none", "micro_batch_size": 3}),
    ("full-bf16", {**SEEN, "checkpointing": "full", "micro_batch_size": 2, "attention": "eager"}),
    ("full-autocast", {**SEEN, "checkpointing": "none", "micro_batch_size": 2, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "full", "micro_batch_size": 2, "image_size": (518, 518)}),
    ("full-fp32", {**SEEN, "checkpointing": "none", "micro_batch_size": 4}),
    ("lora-bf16", {**SEEN, "checkpointing": "full", "micro_batch_size": 3, "lora_targets": ("q_proj", "v_proj")}),
    ("lora-bf16", {"checkpointing": "none", "micro_batch_size": 2, "image_size": (280, 224)}),
    ("lora-autocast", {**SEEN, "checkpointing": "none", "micro_batch_size": 2, "gradient_accumulation_steps": 2}),
    ("lora-autocast", {**SEEN, "checkpointing": "full", "micro_batch_size": 8}),
)
NOT_CHECKPOINTED = ("mpnet",)
"""Families whose layers transformers does not recompute."""
EAGER_ONLY = ("mpnet",)
FAMILIES = {**TEXTS, **IMAGES}


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    name, changes = FAMILIES[family]
    spec = other_spec(name)
    return spec.model_copy(update={"config": {**spec.config, **changes}})


def jobs_of(family: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Settings and jobs."""
    if family == GEMMA:
        return GEMMA_JOBS
    return IMAGE_JOBS if family in IMAGES else TEXT_JOBS


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        spec = spec_for(family)
        for setting, given in jobs_of(family):
            job = {**SETTINGS[setting], **given}
            if family in EAGER_ONLY:
                job["attention"] = "eager"
            if family in NOT_CHECKPOINTED:
                job["checkpointing"] = "none"
            yield family, complete_job(spec, card_of(), job)


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_encoders.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
