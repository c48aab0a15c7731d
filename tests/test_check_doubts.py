"""What `check` says beside a verdict that is not known whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan.planner import check
from vramplan.render.check_words import doubts_of_length

GRPO = """\
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    "out", bf16=True, per_device_train_batch_size=8, num_generations=8, max_completion_length=512,
    model_init_kwargs={"dtype": "bfloat16"},
)
data = load_dataset("trl-lib/DeepMath-103K", split="train")
adapters = LoraConfig(target_modules="all-linear")
GRPOTrainer("Qwen/Qwen2.5-7B-Instruct", print, args=args, train_dataset=data, peft_config=adapters).train()
"""
PAIRS = """\
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

model = SentenceTransformer("BAAI/bge-m3")
model.max_seq_length = 8192
args = SentenceTransformerTrainingArguments("out", per_device_train_batch_size=4)
data = load_dataset("sentence-transformers/all-nli", split="train")
SentenceTransformerTrainer(model, args=args, train_dataset=data, loss=MultipleNegativesRankingLoss(model)).train()
"""


@pytest.mark.full
def test_a_table_of_lengths_keeps_the_note_on_the_cache(tmp_path: Path) -> None:
    """Completions of GRPO that nothing limits fit an RTX 3090 because PyTorch frees its cache."""
    path = tmp_path / "grpo.py"
    path.write_text(GRPO)
    verdict = check.check(path, "rtx3090", num_gpus=1)
    assert len(verdict.cases) > 1
    assert verdict.estimate.num_cache_releases
    (text,) = doubts_of_length(verdict)
    assert text.startswith(f"With {verdict.estimate.job.sequence_length:,} tokens: ")
    assert "frees its cache" in text
    without = replace(verdict, estimate=replace(verdict.estimate, num_cache_releases=0))
    assert doubts_of_length(without) == []
    shown = cli("check", str(path), "--gpu", "rtx3090", "--num-gpus", "1").stdout
    assert "frees its cache" in " ".join(shown.replace("│", " ").split())


def test_a_doubt_says_what_is_not_known_and_why_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    shown = " ".join(cli("check", str(path), "--gpu", "rtx3060").stdout.replace("│", " ").split())
    assert "Not known: negatives of each sample" in shown
    assert "one more text in every forward" in shown
    assert "--set negatives=N gives them" in shown


def test_changes_with_fewer_samples_at_a_time_say_what_becomes_of_the_negatives(tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    verdict = check.check(path, "rtx3060", settings={"negatives": "0"})
    change = verdict.nearest_change
    assert verdict.plan is None
    assert change is not None
    assert change.micro_batch_size < 4
    assert any("negatives" in warning for warning in verdict.plan_warnings)


@pytest.mark.parametrize("columns", [100, pytest.param(60, marks=pytest.mark.full)])
def test_an_answer_of_reinforcement_training_fits_a_screen(tmp_path: Path, columns: int) -> None:
    path = tmp_path / "grpo.py"
    path.write_text(
        GRPO.replace("bf16=True", "bf16=False").replace('    model_init_kwargs={"dtype": "bfloat16"},\n', "")
    )
    lines = cli("check", str(path), "--gpu", "rtx4090", COLUMNS=str(columns)).stdout.splitlines()
    assert len(lines) <= 40
    assert any("FIT" in line for line in lines[:6])
