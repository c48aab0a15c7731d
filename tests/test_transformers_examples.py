"""transformers' own example scripts: read, or refused by name with the nearest estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check, estimate
from vramplan.errors import VramplanError


def command(folder: Path, words: str) -> Path:
    path = folder / "train.sh"
    path.write_text(f"python {words} --dataset_name x --do_train --per_device_train_batch_size 4\n")
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "run_summarization.py --model_name_or_path google-t5/t5-small",
            {"sequence_length": 1024, "target_length": 128},
        ),
        (
            "run_translation.py --model_name_or_path google-t5/t5-small --max_source_length 256 --max_target_length 64",
            {"sequence_length": 256, "target_length": 64},
        ),
        ("run_mlm.py --model_name_or_path answerdotai/ModernBERT-base", {"task": None, "sequence_length": 1024}),
        ("run_mlm.py --model_name_or_path FacebookAI/roberta-base", {"sequence_length": 512}),
        ("run_mlm.py --model_name_or_path FacebookAI/roberta-base --max_seq_length 128", {"sequence_length": 128}),
        (
            "run_glue.py --model_name_or_path google-bert/bert-base-uncased --task_name mnli",
            {"task": "sequence_classification", "num_labels": 3, "sequence_length": 128},
        ),
        ("run_ner.py --model_name_or_path google-bert/bert-base-uncased", {"task": "token_classification"}),
    ],
)
def test_scripts_are_read(tmp_path: Path, words: str, expected: dict[str, Any]) -> None:
    job = check(command(tmp_path, words), gpu="h100", look_further=False).estimate.job
    assert {name: getattr(job, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run_mlm.py --model_name_or_path gpt2", "AutoModelForMaskedLM.*run_clm.py trains it"),
        ("run_summarization.py --model_name_or_path google-bert/bert-base-uncased", "run_mlm.py trains it"),
        (
            "run_qa.py --model_name_or_path google-bert/bert-base-uncased",
            "vramplan estimate google-bert/bert-base-uncased --gpu .* --task token_classification",
        ),
        ("run_qa.py --model_name_or_path=a/b", "vramplan estimate a/b --gpu"),
        ("run_qa.py --model_name_or_path $MODEL", "vramplan estimate MODEL --gpu"),
        ("run_clm.py --model_name_or_path google-bert/bert-base-uncased", "read both ways.*run_mlm.py trains it"),
        ("run_clm.py --model_name_or_path answerdotai/ModernBERT-base", "no causal language model; run_mlm.py"),
        ("run_clm.py --model_name_or_path google-t5/t5-small", "type t5, which is no causal language model$"),
        ("run_swag.py --model_name_or_path google-bert/bert-base-uncased", "choices times samples"),
        ("run_image_classification.py --model_name_or_path a", "vit-base-patch16-224-in21k"),
        ("run_speech_recognition_seq2seq.py --model_name_or_path a", "whisper-small"),
        ("run_clm_no_trainer.py --model_name_or_path gpt2", "--loop plain"),
    ],
)
def test_others_are_refused_with_the_nearest(tmp_path: Path, words: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        check(command(tmp_path, words), gpu="h100")


@pytest.mark.parametrize(
    ("given", "task"),
    [
        ("seq-cls", "sequence_classification"),
        ("Text-Classification", "sequence_classification"),
        ("ner", "token_classification"),
        ("Sentence-Similarity", "embedding"),
        ("retrieval", "embedding"),
        ("text-ranking", "reranker"),
        ("cross-encoder", "reranker"),
        ("reward-model", "reward"),
        ("rm", "reward"),
    ],
)
def test_names_of_tasks(given: str, task: str) -> None:
    assert estimate("qwen2.5-0.5b", "h100", task=given, sequence_length=64).job.task == task


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("causal-lm", "leave it out"),
        ("mlm", "masked words without it"),
        ("summarization", "the model says it"),
        ("regression", "num_labels=1"),
        ("question-answering", "nearest, two numbers for each token, is task=token_classification"),
    ],
)
def test_a_name_that_is_no_task_says_what_to_do(given: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        estimate("qwen2.5-0.5b", "h100", task=given, sequence_length=64)
