"""Scripts of sentence-transformers, in the shapes of its documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check
from vramplan.errors import VramplanError
from vramplan.frameworks.detect import from_path
from vramplan.planner.check import read

EMBEDDING = """
import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
)
from sentence_transformers.evaluation import TripletEvaluator

{model}
train = {data}
loss = {loss}
evaluator = TripletEvaluator(["a"], ["b"], ["c"])
evaluator(model)
args = SentenceTransformerTrainingArguments(
    output_dir="out", per_device_train_batch_size=32, bf16=True, batch_sampler="no_duplicates"
)
trainer = SentenceTransformerTrainer(
    model=model, args=args, train_dataset=train, {passed}evaluator=evaluator
)
trainer.train()
model.save_pretrained("out/final")
"""
RERANKER = """
from datasets import load_dataset
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import {loss}

model = CrossEncoder("answerdotai/ModernBERT-base"{arguments})
args = CrossEncoderTrainingArguments(output_dir="out", per_device_train_batch_size=16, bf16=True)
CrossEncoderTrainer(model, args, load_dataset("a/b", split="train"), loss={loss}(model)).train()
"""
BGE = 'model = SentenceTransformer("BAAI/bge-base-en-v1.5")'
TRIPLETS = 'load_dataset("sentence-transformers/all-nli", "triplet", split="train")'
NEGATIVES = "losses.MultipleNegativesRankingLoss(model)"


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def embedding(model: str = BGE, data: str = TRIPLETS, loss: str = NEGATIVES) -> str:
    return EMBEDDING.format(model=model, data=data, loss=loss, passed="loss=loss, " if loss != "None" else "")


CASES: list[tuple[str, dict[str, Any]]] = [
    (embedding(), {"embedding_loss": "multiple_negatives", "negatives": 1, "pooling": "cls", "dtype": "fp32"}),
    (embedding(loss="None"), {"embedding_loss": "cosent", "negatives": 0}),
    (embedding(loss="losses.CosineSimilarityLoss(model)"), {"embedding_loss": "cosine_similarity", "negatives": 0}),
    (embedding(loss="losses.TripletLoss(model)"), {"embedding_loss": "triplet", "negatives": 1}),
    (embedding(loss="losses.ContrastiveLoss(model, margin=0.4)"), {"embedding_loss": "contrastive", "negatives": 0}),
    (embedding(loss="losses.OnlineContrastiveLoss(model)"), {"embedding_loss": "online_contrastive", "negatives": 0}),
    (embedding(loss="losses.AnglELoss(model, 20.0)"), {"embedding_loss": "angle", "negatives": 0}),
    (embedding(loss="losses.MultipleNegativesSymmetricRankingLoss(model)"), {"embedding_loss": "symmetric"}),
    (embedding(loss="losses.MarginMSELoss(model)"), {"embedding_loss": "margin_mse", "negatives": 1}),
    (embedding(data='load_dataset("sentence-transformers/gooaq", "pair")["train"]'), {"negatives": 0}),
    (
        embedding(data='load_dataset("a/b", split="train").select_columns(["query", "good", "bad1", "bad2", "score"])'),
        {"negatives": 2, "batches": "padded"},
    ),
    (embedding(data='Dataset.from_dict({"a": ["x"], "b": ["y"], "c": ["z"]})'), {"negatives": 1}),
    (
        embedding(loss="losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=16)"),
        {"embedding_loss": "cached_multiple_negatives", "mini_batch_size": 16},
    ),
    (embedding(loss="losses.CachedMultipleNegativesRankingLoss(model)"), {"mini_batch_size": 32}),
    (
        embedding(loss="losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [768, 256, 64])"),
        {"embedding_loss": "multiple_negatives", "matryoshka_dims": (768, 256, 64)},
    ),
    (embedding(model=f"{BGE}\nmodel.max_seq_length = 128"), {"sequence_length": 128}),
    (
        embedding(
            model='word = models.Transformer("google-bert/bert-base-uncased", max_seq_length=256)\n'
            'pooling = models.Pooling(word.get_word_embedding_dimension(), "cls")\n'
            "model = SentenceTransformer(modules=[word, pooling])"
        ),
        {"sequence_length": 256, "pooling": "cls"},
    ),
    (
        embedding(
            model='model = SentenceTransformer("Qwen/Qwen3-Embedding-0.6B", model_kwargs={"dtype": torch.bfloat16},\n'
            '    tokenizer_kwargs={"model_max_length": 512})\n'
            'model.add_adapter(LoraConfig(task_type="FEATURE_EXTRACTION", r=64))'
        ),
        {"method": "lora", "lora_rank": 64, "dtype": "bf16", "lora_dtype": "bf16", "pooling": "lasttoken"},
    ),
    (RERANKER.format(loss="BinaryCrossEntropyLoss", arguments=", max_length=512"), {"task": "reranker"}),
    (RERANKER.format(loss="MSELoss", arguments=", num_labels=1"), {"task": "reranker", "micro_batch_size": 16}),
    (
        RERANKER.format(loss="CrossEntropyLoss", arguments=", num_labels=3"),
        {"task": "sequence_classification", "num_labels": 3},
    ),
    (
        embedding(loss="losses.MatryoshkaLoss(model, losses.CachedMultipleNegativesRankingLoss(model), [768, 256])"),
        {"embedding_loss": "cached_multiple_negatives", "matryoshka_dims": (768, 256)},
    ),
]


@pytest.mark.parametrize("loss", ["CoSENTLoss", "TripletLoss"])
def test_columns_of_a_loss_without_negatives_are_no_key_of_the_script(tmp_path: Path, loss: str) -> None:
    found = from_path(script(tmp_path, embedding(loss=f"losses.{loss}(model)")), None, {})
    assert "negatives" not in found.source.settings
    assert "negatives" not in [note.key for note in read(found, 1).notes]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_scripts_are_read(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    job = check(script(tmp_path, text), gpu="h100", look_further=False).estimate.job
    assert {name: getattr(job, name) for name in expected} == expected
    assert job.autocast == "bf16"


def test_columns_that_are_not_known_stand_beside_the_verdict(tmp_path: Path) -> None:
    path = script(tmp_path, embedding(data='load_dataset("json", data_files="x.json", split="train")'))
    result = check(path, gpu="h100")
    assert result.estimate.job.negatives == 1
    assert any(note.key == "negatives" and note.kind == "doubt" for note in result.reading.notes)
    assert check(path, gpu="h100", settings={"negatives": "3"}, look_further=False).estimate.job.negatives == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (embedding(loss="losses.GISTEmbedLoss(model, guide)"), "guide"),
        (embedding(loss="losses.TripletLoss(model, distance_metric=COSINE)"), "distance_metric"),
        (embedding(loss="losses.ContrastiveLoss(model, distance_metric=M.EUCLIDEAN)"), "distance_metric"),
        (embedding(loss='{"a": losses.CoSENTLoss(model), "b": losses.CoSENTLoss(model)}'), "several losses"),
        (embedding(loss="losses.MultipleNegativesRankingLoss(model, gather_across_devices=True)"), "gather_across"),
        (embedding(loss="losses.MultipleNegativesRankingLoss(model, similarity_fct=util.dot_score)"), "similarity_fct"),
        (embedding(model='model = SentenceTransformer("a/b", backend="onnx")'), "only torch trains"),
        (
            embedding(
                model='model = SentenceTransformer("a", model_kwargs={"attn_implementation": "flash_attention_2"})'
            ),
            "joins all texts",
        ),
        (embedding(model="model = make()"), "known without running"),
        (embedding(loss="losses.SoftmaxLoss(model, 768, 3)"), "SoftmaxLoss.*--task embedding.*a layer"),
        (embedding(loss="losses.BatchAllTripletLoss(model)"), "nearest: vramplan estimate MODEL"),
        (
            RERANKER.format(loss="LambdaLoss", arguments=""),
            "modelled: BinaryCrossEntropyLoss, .*queries times documents",
        ),
        (RERANKER.format(loss="MSELoss", arguments=", num_labels=3"), "of 3 labels is not modelled.*CrossEntropyLoss"),
        (RERANKER.format(loss="CrossEntropyLoss", arguments=""), "CrossEncoder is not modelled yet"),
        (RERANKER.format(loss="CoSENTLoss", arguments=""), "of a CrossEncoder is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(VramplanError, match=error):
        check(script(tmp_path, text), gpu="h100")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AutoModelForMultipleChoice", "choices times samples"),
        ("AutoModelForQuestionAnswering", "--task token_classification"),
    ],
)
def test_classes_that_are_not_read_have_a_nearest_estimate(tmp_path: Path, name: str, said: str) -> None:
    text = (
        f"from transformers import {name}, Trainer, TrainingArguments\n"
        f'model = {name}.from_pretrained("google-bert/bert-base-uncased")\n'
        'Trainer(model=model, args=TrainingArguments("out"), train_dataset=data).train()\n'
    )
    with pytest.raises(VramplanError, match=said):
        check(script(tmp_path, text), gpu="h100")
