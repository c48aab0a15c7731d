"""`check --dataset` of texts that are compared or labelled: columns, and ms-swift's lists of messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_sentence_transformers import embedding, script
from vramplan import check
from vramplan.errors import VramplanError
from vramplan.inputs.dataset.compared import texts_of

PAIRS = 'load_dataset("json", data_files="x.json", split="train")'
TRIPLET = {"anchor": "a" * 30, "positive": "b" * 300, "negative": "c" * 120, "score": "0.5"}
SWIFT = {
    "messages": [{"role": "user", "content": "q" * 60}],
    "positive_messages": [[{"role": "user", "content": "p" * 90}]],
    "negative_messages": [[{"role": "user", "content": "n" * 30}], [{"role": "user", "content": "m" * 240}]],
    "label": 1,
}


def data(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_columns_say_lengths_and_negatives(tmp_path: Path) -> None:
    path = script(tmp_path, embedding(data=PAIRS))
    found = check(path, gpu="h100", dataset=data(tmp_path, TRIPLET, {**TRIPLET, "positive": "b"}))
    assert (found.estimate.job.negatives, found.estimate.job.sequence_length) == (1, 105)  # 300 / 3 and 5 around it
    assert not any(note.kind == "doubt" for note in found.reading.notes)
    pairs = check(path, gpu="h100", dataset=data(tmp_path, {"q": "a", "d": "b"}))
    assert pairs.estimate.job.negatives == 0
    assert pairs.estimate.peak_allocated_bytes < found.estimate.peak_allocated_bytes


def test_a_number_that_is_given_counts(tmp_path: Path) -> None:
    path, file = script(tmp_path, embedding(data=PAIRS)), data(tmp_path, TRIPLET)
    assert check(path, gpu="h100", dataset=file, settings={"negatives": "0"}).estimate.job.negatives == 0


@pytest.mark.parametrize(
    ("types", "negatives", "tokens"),
    [("embedding --loss_type infonce", 2, 85), ("reranker", 1, 110), ("seq_cls --num_labels 2", 0, 146)],
)
def test_messages_of_ms_swift(tmp_path: Path, types: str, negatives: int, tokens: int) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "MAX_NEGATIVE_SAMPLES=1 swift sft --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 --dataset data.jsonl"
        f" --max_length 512 --tuner_type lora --task_type {types}\n"
    )
    job = check(path, gpu="h100", dataset=data(tmp_path, SWIFT)).estimate.job
    assert (job.negatives, job.sequence_length) == (negatives, tokens)


def test_one_text_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(VramplanError, match="one text in each sample"):
        check(script(tmp_path, embedding(data=PAIRS)), gpu="h100", dataset=data(tmp_path, {"text": "a", "label": "1"}))


def test_a_row_without_texts() -> None:
    with pytest.raises(VramplanError, match="no column of texts; it has score"):
        texts_of({"score": 1}, "data.jsonl:1")
    with pytest.raises(VramplanError, match="columns of texts"):
        texts_of(["a"], "data.jsonl:1")
    assert [one.text for one in texts_of({"answer": "b", "query": "a", "id": 3}, "")] == ["a", "b"]
