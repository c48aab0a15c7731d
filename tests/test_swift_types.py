"""``swift sft --task_type`` read and written as ms-swift's own trainers run it (3.12, 4.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recorded_runs import errors_of
from tests.test_swift_tasks import OF_SWIFT
from tests.test_trl import GPU, name_of
from vramplan import check, estimate
from vramplan.errors import VramplanError
from vramplan.inputs.tasks import RERANKERS

COMMAND = (
    "{}swift sft --model {} --torch_dtype bfloat16 --dataset data.jsonl --max_length 256"
    " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 {} {}\n"
)
LORA = "--tuner_type lora"
ONE_ROW = "--padding_free true --attn_impl flash_attn"
PACKED = "--packing true --attn_impl flash_attn"
OF_TYPES = [row for row in OF_SWIFT if row["job"]["task"] in ("sequence_classification", "embedding", *RERANKERS)]


def command(folder: Path, types: str, more: str = LORA, model: str = "Qwen/Qwen3-0.6B", before: str = "") -> Path:
    path = folder / "train.sh"
    path.write_text(COMMAND.format(before, model, types, more))
    return path


@pytest.mark.parametrize("row", OF_TYPES[::4], ids=name_of)
def test_peaks_agree_with_swifts_own_trainers(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= 0.0001


@pytest.mark.full
def test_all_runs_agree() -> None:
    assert len(OF_TYPES) >= 40
    assert max(max(errors_of(row, GPU).values()) for row in OF_TYPES) <= 0.0001


INFONCE = {"task": "embedding", "embedding_loss": "multiple_negatives", "joins_texts": True, "batches": "padded"}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("--task_type embedding --loss_type infonce", {**INFONCE, "negatives": 1}),
        ("--task_type embedding --loss_type contrastive", {"embedding_loss": "contrastive", "negatives": 0}),
        ("--task_type reranker", {"task": "reranker", "negatives": 7, "modules_to_save": ("score",)}),
        ("--task_type reranker --loss_type listwise_reranker", {"negatives": 7}),
        (
            "--task_type seq_cls --num_labels 4 --problem_type multi_label_classification",
            {"task": "sequence_classification", "num_labels": 4, "batches": "padded"},
        ),
        ("--task_type seq_cls --num_labels 1 --problem_type regression", {"num_labels": 1}),
        ("--task_type causal_lm", {"task": None}),
        ("--task_type generative_reranker", {"task": "generative_reranker", "negatives": 7, "modules_to_save": None}),
        (
            f"--task_type embedding --loss_type infonce {ONE_ROW}",
            {**INFONCE, "batches": "packed", "attention": "flash"},
        ),
        (f"--task_type generative_reranker {ONE_ROW}", {"batches": "packed"}),
    ],
)
def test_types(tmp_path: Path, types: str, expected: dict[str, Any]) -> None:
    job = check(command(tmp_path, types), gpu="4090", look_further=False).estimate.job
    assert {name: getattr(job, name) for name in expected} == expected


def test_the_data_says_how_many_texts_a_sample_has(tmp_path: Path) -> None:
    path = command(tmp_path, "--task_type reranker", before="MAX_NEGATIVE_SAMPLES=3 ")
    found = check(path, gpu="4090")
    assert found.estimate.job.negatives == 3
    assert any(note.key == "negatives" and note.kind == "doubt" for note in found.reading.notes)
    told = check(path, gpu="4090", settings={"negatives": "1"})
    assert told.estimate.job.negatives == 1
    assert not any(note.kind == "doubt" for note in told.reading.notes)
    assert told.estimate.peak_allocated_bytes < found.estimate.peak_allocated_bytes


@pytest.mark.parametrize(
    ("types", "more", "model", "said"),
    [
        ("--task_type embedding", LORA, "Qwen/Qwen3-0.6B", "stops without loss_type: one of infonce"),
        ("--task_type seq_cls", LORA, "Qwen/Qwen3-0.6B", "stops without num_labels"),
        (
            "--task_type generative_reranker",
            "--train_type lora",
            "Qwen/Qwen3-0.6B",
            "before 4.0, .*--task generative_reranker",
        ),
        ("--task_type generative_reranker", LORA, "BAAI/bge-m3", "generative rerankers"),
        ("--task_type decision", LORA, "Qwen/Qwen3-0.6B", "modelled: seq_cls, embedding, reranker"),
        ("--task_type embedding --loss_type other", LORA, "Qwen/Qwen3-0.6B", "other of embeddings is not modelled"),
        ("--task_type reranker --loss_type infonce", LORA, "Qwen/Qwen3-0.6B", "infonce of a reranker"),
        ("--task_type embedding --loss_type infonce", "--sft_type lora", "Qwen/Qwen3-0.6B", "before 3.12"),
        ("--task_type embedding --loss_type infonce", f"{LORA} --mrl_dims 64", "Qwen/Qwen3-0.6B", "mrl_dims"),
        (
            "--task_type embedding --loss_type infonce",
            f"{LORA} --padding_free true",
            "Qwen/Qwen3-0.6B",
            "attn_impl flash",
        ),
        (
            "--task_type reranker",
            f"{LORA} {PACKED} --streaming true",
            "Qwen/Qwen3-0.6B",
            "streaming: true with packing",
        ),
        (
            "--task_type embedding --loss_type infonce",
            f"--sft_type lora {PACKED}",
            "Qwen/Qwen3-0.6B",
            "embedding of versions before 3.12",
        ),
        ("--task_type seq_cls --num_labels 2", f"--sft_type lora {ONE_ROW}", "Qwen/Qwen3-0.6B", "before 3.12"),
        ("--task_type embedding --loss_type infonce", LORA, "BAAI/bge-m3", "sentence-transformers trains"),
        ("--task_type embedding --loss_type infonce", LORA, "Alibaba-NLP/gte-Qwen2-1.5B-instruct", "Sentence"),
        ("--loss_type infonce", LORA, "Qwen/Qwen3-0.6B", "loss_type: infonce is not modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, types: str, more: str, model: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        check(command(tmp_path, types, more, model), gpu="4090")


@pytest.mark.parametrize(
    ("types", "more", "expected", "doubt"),
    [
        ("--task_type seq_cls --num_labels 4", "", {"sequence_length": 256, "negatives": 0}, ""),
        ("--task_type reranker", "", {"sequence_length": 256, "negatives": 0}, "8 texts of max_length would be 2,048"),
        ("--task_type reranker", "--packing_length 4096", {"sequence_length": 4096, "negatives": 0}, ""),
        (
            "--task_type embedding --loss_type infonce",
            "--packing_length 700",
            {"sequence_length": 350, "joins_texts": True},
            "3 texts of max_length would be 768",
        ),
    ],
)
def test_packs_are_planned_full(tmp_path: Path, types: str, more: str, expected: dict[str, Any], doubt: str) -> None:
    read = check(command(tmp_path, types, f"{LORA} {PACKED} {more}"), gpu="4090")
    assert {name: getattr(read.estimate.job, name) for name in expected} == expected
    assert read.estimate.job.batches == "packed"
    doubts = [note.text for note in read.reading.notes if note.kind == "doubt"]
    assert len(doubts) == bool(doubt)
    assert not doubt or doubt in doubts[0]


def test_samples_of_several_texts_are_not_packed_from_a_data_set(tmp_path: Path) -> None:
    path = command(tmp_path, "--task_type reranker", f"{LORA} {PACKED}")
    (tmp_path / "texts.jsonl").write_text('{"query": "a", "positive": "b", "negative": "c"}\n')
    with pytest.raises(VramplanError, match="all texts of a sample are in one pack"):
        check(path, gpu="4090", dataset=tmp_path / "texts.jsonl")


def test_the_head_of_a_language_model_is_loaded() -> None:
    def loaded(**settings: Any) -> int:
        job = {"task": "embedding", "sequence_length": 128, "batches": "padded", **settings}
        return estimate("qwen2.5-7b", "h100", **job).phases["loaded"]

    assert loaded(joins_texts=True) - loaded() == pytest.approx(2 * 152064 * 3584, rel=0.001)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matryoshka_dims": (64,)}, "matryoshka_dims"),
        ({"embedding_loss": "cosent"}, "ms-swift has no"),
        ({"pooling": "mean"}, "last token"),
        ({"loop": "plain"}, "Trainer"),
    ],
)
def test_what_swift_does_not_do(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        estimate("qwen3-0.6b", "h100", task="embedding", joins_texts=True, sequence_length=128, **settings)
