"""A length that no file has is taken, not known; a smaller micro-batch has fewer negatives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vramplan
from tests.helpers import cli, cli_json

SCRIPT = """from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.losses import {loss}

model = SentenceTransformer("BAAI/bge-base-en-v1.5")
data = load_dataset("sentence-transformers/all-nli", "{subset}", split="train")
loss = {loss}(model)
args = SentenceTransformerTrainingArguments(output_dir="out", per_device_train_batch_size={batch}, bf16=True)
trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=data, loss=loss)
trainer.train()
"""


def written(folder: Path, batch: int, loss: str = "MultipleNegativesRankingLoss", subset: str = "triplet") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(loss=loss, batch=batch, subset=subset))
    return path


def test_texts_without_a_limit_may_be_shorter_than_the_model_takes(tmp_path: Path) -> None:
    path = written(tmp_path, 64)
    verdict = vramplan.check(path, "rtx4090", num_gpus=1)
    assert (verdict.fits, verdict.depends) == (False, True)
    fitting = [case.sequence_length for case in verdict.cases if case.fits]
    assert 128 <= max(fitting) == verdict.estimate.job.sequence_length < 512
    assert [case.sequence_length for case in verdict.cases] == sorted(case.sequence_length for case in verdict.cases)
    for case in verdict.cases:
        alone = vramplan.check(path, "rtx4090", num_gpus=1, sequence_length=case.sequence_length)
        assert (alone.need_bytes, alone.fits) == (case.need_bytes, case.fits)
    shown = cli("check", str(path), "--gpu", "rtx4090", "--num-gpus", "1")
    assert "FITS UP TO" in shown.stdout
    assert shown.returncode == 1
    said = [note.text for note in verdict.reading.notes if note.key == "max_seq_length"]
    assert any("taken, not known" in text for text in said)
    assert vramplan.check(written(tmp_path, 4), "rtx4090", num_gpus=1).fits


def test_no_length_is_called_a_limit_that_no_file_has(tmp_path: Path) -> None:
    path = written(tmp_path, 1024)
    verdict = vramplan.check(path, "rtx4090", num_gpus=1)
    assert not verdict.depends
    assert {case.sequence_length for case in verdict.cases} == {32, 64, 128, 256, 512}
    assert verdict.estimate.job.sequence_length == 512
    assert "the limit" not in cli("check", str(path), "--gpu", "rtx4090", "--num-gpus", "1", "-v").stdout


def test_a_completion_of_grpo_without_a_limit_of_its_prompt(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\ndataset_name: d\nnum_generations: 8\nuse_vllm: true\n"
        "vllm_mode: server\ndtype: bfloat16\nper_device_train_batch_size: 128\nmax_completion_length: 256\n"
    )
    verdict = vramplan.check(path, "rtx4090", num_gpus=1, framework_version="1.12.0")
    assert min(case.sequence_length for case in verdict.cases) <= 512
    assert min(case.sequence_length for case in verdict.cases) > 256


@pytest.mark.parametrize(
    ("loss", "subset", "cached"),
    [
        ("MultipleNegativesRankingLoss", "triplet", "CachedMultipleNegativesRankingLoss"),
        ("MultipleNegativesSymmetricRankingLoss", "pair", "CachedMultipleNegativesSymmetricRankingLoss"),
        ("CoSENTLoss", "pair-score", ""),
    ],
)
def test_a_smaller_micro_batch_has_fewer_negatives(tmp_path: Path, loss: str, subset: str, cached: str) -> None:
    path = str(written(tmp_path, 512, loss, subset))
    asked = ("check", path, "--gpu", "rtx4090", "--num-gpus", "1", "--seq-len", "256")
    data = json.loads(cli(*asked, "--json").stdout)
    assert data["plan"]["micro_batch_size"] < 512
    assert any(cached in text for text in data["plan_warnings"]) == bool(cached)
    assert (cached in " ".join(cli(*asked).stdout.split()).replace("│ │", "")) == bool(cached) or not cached


def test_suggest_warns_of_accumulation() -> None:
    asked = ("suggest", "BAAI/bge-base-en-v1.5", "--gpu", "rtx4090", "--task", "embedding", "--method", "full")
    found = cli_json(*asked, "--seq-len", "512", "--global-batch", "4096")
    assert any("accumulation adds none" in text for text in found["warnings"])
    assert not cli_json(*asked, "--seq-len", "64", "--global-batch", "8")["warnings"]
