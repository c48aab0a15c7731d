"""Spellings that several versions of a framework have, of which not all are modelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import from_words
from vramplan.planner import check

COMMAND = "swift rlhf --rlhf_type {task} --model Qwen/Qwen2.5-3B-Instruct --dataset d --max_length 2048 {method} lora"


def doubts(task: str, method: str, version: str | None = None) -> list[str]:
    """The keys of which something is not known."""
    words = COMMAND.format(task=task, method=method).split()
    return [note.key for note in check.read(from_words(words, None, {}), 1, version).notes if note.kind == "doubt"]


def test_train_type_may_be_an_older_version() -> None:
    """ms-swift's issue 4486 ran out of memory in June 2025, by a version that is not modelled."""
    with_vllm = "--use_vllm true --vllm_mode colocate {}"
    assert "train_type" in doubts("grpo", with_vllm.format("--train_type"))
    assert "train_type" not in doubts("grpo", with_vllm.format("--train_type"), "3.12.6")
    assert "tuner_type" not in doubts("grpo", with_vllm.format("--tuner_type"))
    assert "train_type" not in doubts("dpo", "--train_type"), "its large tensors are the same from 3.5 on"


@pytest.mark.parametrize(
    ("imports", "arguments", "optimizer"),
    [
        ("transformers import Trainer, TrainingArguments", "evaluation_strategy='no'", "adamw_torch"),
        ("transformers import Trainer, TrainingArguments", "eval_strategy='no'", "adamw_torch_fused"),
        ("trl import SFTTrainer as Trainer, SFTConfig as TrainingArguments", "max_seq_length=512", "adamw_torch"),
        ("trl import SFTTrainer as Trainer, SFTConfig as TrainingArguments", "max_length=512", "adamw_torch_fused"),
    ],
)
def test_the_default_optimizer_is_that_of_the_version(
    tmp_path: Path, imports: str, arguments: str, optimizer: str
) -> None:
    """Before transformers 4.54 it is not fused: a full fine-tuning has a list of all updates beside the states."""
    path = tmp_path / "train.py"
    path.write_text(
        f"from transformers import AutoModelForCausalLM\nfrom {imports}\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        f"Trainer(model=model, args=TrainingArguments('out', {arguments}), train_dataset=data).train()\n"
    )
    assert (
        check.check(path, "h100", num_gpus=1, sequence_length=512, look_further=False).estimate.job.optimizer
        == optimizer
    )


def test_flags_of_openrlhf_may_be_an_older_version() -> None:
    """OpenRLHF's issues 384 and 887 ran out of memory by versions before 0.7."""
    line = "deepspeed --module openrlhf.cli.train_dpo --pretrain Qwen/Qwen2.5-7B --dataset d --max_len 2048 --bf16"

    def found(version: str | None) -> list[str]:
        notes = check.read(from_words(line.split(), None, {}), 8, version).notes
        return [note.key for note in notes if note.kind == "doubt"]

    assert "framework_version" in found(None)
    assert "framework_version" not in found("0.9.0")


OPENRLHF = "deepspeed --module openrlhf.cli.{program} --pretrain Qwen/Qwen2.5-3B --dataset d --bf16 {flags}"


@pytest.mark.parametrize(
    ("program", "flags", "is_open"),
    [
        ("train_sft", "--gradient_checkpointing", True),
        ("train_sft", "--dataset_split train", False),
        ("train_sft", "--train_split train", True),  # which it has in all versions
        ("train_sft", "--attn_implementation flash_attention_2", False),
        ("train_dpo", "--lr_scheduler cosine", False),
        ("train_dpo", "--flash_attn", True),
        ("train_rm", "--flash_attn", False),  # no logits: the loop of 0.5 is today's
    ],
)
def test_flags_tell_the_version_of_openrlhf(program: str, flags: str, is_open: bool) -> None:
    """Before 0.7 whole logits were copied; some flags came with 0.7 or later."""
    words = OPENRLHF.format(program=program, flags=flags).split()
    notes = [note.key for note in check.read(from_words(words, None, {}), 8, None).notes if note.kind == "doubt"]
    assert ("framework_version" in notes) == is_open


def test_a_flag_of_an_older_openrlhf_is_refused_by_name() -> None:
    words = OPENRLHF.format(program="train_dpo", flags="--train_split train").split()
    with pytest.raises(UnsupportedError, match=r"train_split is a flag of OpenRLHF before 0\.7"):
        check.read(from_words(words, None, {}), 8, None)
    words = OPENRLHF.format(program="train_rm", flags="--flash_attn").split()
    assert check.read(from_words(words, None, {}), 8, "0.6.4").version.startswith("0.6.4")
    with pytest.raises(UnsupportedError, match=r"its loops differ before 0\.5"):
        check.read(from_words(words, None, {}), 8, "0.4.0")
