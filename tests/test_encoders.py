"""Encoders of text, images and sound: traces of the real classes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

import vramplan
from tests import encoder_cases
from tests.traced_table import name_of
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.job import Job

ROWS = encoder_cases.TABLE.load()
EVERY = 7
"""One job of so many is in the sample of a family; the full run takes all."""


def check(family: str, jobs: list[Job]) -> list[float]:
    """Every phase's peak, the operations and the parameters counted."""
    return [encoder_cases.TABLE.check(family, job, ROWS) for job in jobs]


@pytest.mark.parametrize(("number", "family"), list(enumerate(encoder_cases.FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    check(family, encoder_cases.TABLE.jobs_of(family)[number % EVERY :: EVERY])


@pytest.mark.full
def test_estimates_agree_with_traces() -> None:
    errors = [
        error for family in encoder_cases.FAMILIES for error in check(family, encoder_cases.TABLE.jobs_of(family))
    ]
    assert median(errors) <= 1e-3


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in encoder_cases.cases()} == set(ROWS)


def test_answers_name_the_class_and_its_labels() -> None:
    for settings, labels in (({}, 2), ({"num_labels": 37}, 37)):
        estimate = vramplan.estimate("dinov2-base", "rtx4090", **settings)
        assert f"Dinov2ForImageClassification with {labels} labels" in estimate.assumptions[0]
        assert estimate.job.image_size == (224, 224)
    assert estimate.job.modules_to_save == ("classifier",)


def test_embeddinggemma_has_two_layers_behind_its_pooling() -> None:
    settings = {"task": "embedding", "sequence_length": 512}
    whole, adapted = (vramplan.estimate("embeddinggemma-300m", "h100", method=m, **settings) for m in ("full", "lora"))
    dense = 2 * 768 * 3072
    assert whole.num_parameters == whole.num_trainable_parameters == 302_863_104 + dense
    assert adapted.num_trainable_parameters > dense
    assert "Gemma3TextModel and two dense layers for embeddings" in whole.assumptions[0]
    assert "mean pooling" in whole.assumptions[0]


@pytest.mark.parametrize("settings", [{}, {"task": "embedding", "joins_texts": True}])
def test_embeddinggemma_is_refused_for_what_is_not_modelled(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="reads both ways and is modelled as sentence-transformers"):
        vramplan.estimate("embeddinggemma-300m", "h100", **settings)


SCRIPT = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

model = AutoModelForImageClassification.from_pretrained("facebook/dinov2-base", num_labels=101)
{adapters}
args = TrainingArguments("out", per_device_train_batch_size=32, bf16=True, label_names=["labels"])
Trainer(model, args, train_dataset=images).train()
"""
LORA = "model = get_peft_model(model, LoraConfig(r=16, target_modules={targets}, modules_to_save=['classifier']))"


@pytest.mark.parametrize("adapters", ["", LORA.format(targets="['q_proj', 'v_proj']")])
def test_scripts_that_classify_images_are_read(adapters: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(adapters=adapters))
    verdict = vramplan.check(path, gpu="rtx4090")
    job = verdict.estimate.job
    read = job.task, job.num_labels, job.image_size, job.sequence_length
    assert read == ("image_classification", 101, (224, 224), 257)
    assert job.modules_to_save == (("classifier",) if adapters else None)
    assert any(note.key == "image_size" and note.kind == "doubt" for note in verdict.reading.notes)
    larger = vramplan.check(path, gpu="rtx4090", image_size=(448, 448), look_further=False)
    assert larger.estimate.job.sequence_length == 1025


def test_a_backbone_without_a_classifier_says_what_is_added() -> None:
    words = vramplan.estimate("facebook/dinov3-vitl16-pretrain-lvd1689m", "rtx4090", num_labels=5).assumptions[0]
    assert "DINOv3ViTModel and a linear layer on its class token's state, with 5 labels" in words


NAMES = {
    "embedding": "all-MiniLM-L6-v2 all-mpnet-base-v2 bge-m3 bge-base-zh-v1.5 e5-large-v2 multilingual-e5-base"
    " gte-modernbert-base mxbai-embed-large-v1 snowflake-arctic-embed-m snowflake-arctic-embed-l-v2.0"
    " modernbert-embed-base Qwen3-Embedding-0.6B granite-embedding-english-r2 e5-mistral-7b-instruct"
    " all-distilroberta-v1",
    "reranker": "bge-reranker-v2-m3 ms-marco-MiniLM-L6-v2 ms-marco-TinyBERT-L2-v2 gte-reranker-modernbert-base"
    " mxbai-rerank-base-v1 mxbai-rerank-large-v2 Qwen3-Reranker-0.6B mmBERT-base",
}
"""What people call the models that they train with sentence-transformers."""


@pytest.mark.parametrize("task", NAMES)
def test_embedders_and_rerankers_are_known_by_name(task: str) -> None:
    for name in NAMES[task].split():
        estimate = vramplan.estimate(name, "h100", task=task, sequence_length=128)
        ending = "Model for embeddings" if task == "embedding" else "ForSequenceClassification with 1 label"
        assert ending in estimate.assumptions[0], name


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("all-mpnet-base-v2", {"checkpointing": "full"}, ConfigError, "no gradient checkpointing for mpnet"),
        ("all-mpnet-base-v2", {"attention": "sdpa"}, ConfigError, "only with eager"),
        ("all-mpnet-base-v2", {"sequence_length": 513}, ConfigError, "512"),
        ("dinov2-base", {"task": "sequence_classification"}, UnsupportedError, "no Dinov2ForSequenceClassification"),
        ("dinov2-base", {"image_size": (10, 10)}, ConfigError, "patches of 14 x 14"),
        ("bert-base-uncased", {"task": "image_classification"}, UnsupportedError, "no BertForImageClassification"),
    ],
)
def test_what_is_refused(name: str, settings: dict[str, Any], error: type[VramplanError], message: str) -> None:
    with pytest.raises(error, match=message):
        vramplan.estimate(name, "h200", **settings)
