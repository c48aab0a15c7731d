"""Scripts with the names of TRL's, and flags that a script does nothing with: what the script does counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan.frameworks.detect import from_path
from vramplan.frameworks.settings import Note
from vramplan.planner.check import read

FLAGS = (
    "--model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --output_dir out --per_device_train_batch_size 1 --max_length 512"
)
SCRIPT = """\
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import DPOConfig, DPOTrainer, ModelConfig, get_peft_config

training_args, model_args = HfArgumentParser((DPOConfig, ModelConfig)).parse_args_into_dataclasses()
{before}
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path{arguments})
DPOTrainer(model=model, args=training_args, train_dataset=rows{trainer}).train()
"""
CHANGED = "training_args.per_device_train_batch_size = 16"
HEADER = "# Copyright 2020-2026 The HuggingFace Team. All rights reserved.\n"


def command(
    folder: Path, program: str, flags: str = "", before: str = "", arguments: str = "", trainer: str = ""
) -> tuple[dict[str, Any], list[Note]]:
    """The job and the notes of a command that runs a script with these parts."""
    text = SCRIPT.format(before=before, arguments=arguments, trainer=trainer)
    return answer(folder, program, text, flags)


def answer(folder: Path, program: str, text: str, flags: str = "") -> tuple[dict[str, Any], list[Note]]:
    """The job and the notes of a command that runs a script with this text."""
    script = folder / (program.replace("-m ", "").replace(".py", "").replace(".", "/") + ".py")
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    (folder / "go.sh").write_text(f"accelerate launch --num_processes 1 {program} {FLAGS} {flags}\n")
    parsed = read(from_path(folder / "go.sh", None, {}), 1)
    return parsed.job, parsed.notes


@pytest.mark.parametrize("program", ["mine.py", "dpo.py", "sft.py", "scripts/reward.py", "-m kto", "ppo.py", "gold.py"])
def test_a_script_is_read_whatever_its_name(tmp_path: Path, program: str) -> None:
    job, _ = command(tmp_path, program, before=CHANGED)
    assert job["task"] == "dpo"
    assert job["micro_batch_size"] == 16


@pytest.mark.parametrize(("before", "size"), [("", 1), (CHANGED, 16)])
def test_trls_own_script_is_read_by_its_name(tmp_path: Path, before: str, size: int) -> None:
    text = HEADER + SCRIPT.format(before=before, arguments="", trainer="").replace("HfArgumentParser", "TrlParser")
    job, notes = answer(tmp_path, "dpo.py", text)
    assert job["micro_batch_size"] == size
    assert any("dpo.py is taken for TRL's own script" in note.text for note in notes) == (not before)


def test_a_script_of_which_nothing_is_read_is_a_doubt(tmp_path: Path) -> None:
    _, notes = answer(tmp_path, "dpo.py", "from elsewhere import main\nmain()\n")
    assert any(note.kind == "doubt" and "dpo.py" in note.text for note in notes)


PEFT = "--use_peft true --lora_r 8"


def test_adapters_that_the_script_does_not_hand_on(tmp_path: Path) -> None:
    job, notes = command(tmp_path, "mine.py", PEFT)
    assert job["method"] == "full"
    assert [note.key for note in notes if "hands no peft_config to its trainer" in note.text] == ["use_peft"]


def test_adapters_that_it_hands_on(tmp_path: Path) -> None:
    job, notes = command(tmp_path, "mine.py", PEFT, trainer=", peft_config=get_peft_config(model_args)")
    assert (job["method"], job["lora_rank"]) == ("lora", 8)
    assert not [note for note in notes if "has no effect" in note.text]


def test_adapters_of_its_own(tmp_path: Path) -> None:
    before = "from peft import LoraConfig"
    job, notes = command(tmp_path, "mine.py", PEFT, before, trainer=", peft_config=LoraConfig(r=64)")
    assert job["lora_rank"] == 64
    assert [note.key for note in notes if "has no effect" in note.text] == ["lora_r"]


def test_loading_that_the_script_decides(tmp_path: Path) -> None:
    flags = "--dtype bfloat16 --attn_implementation flash_attention_2 --load_in_4bit"
    job, notes = command(tmp_path, "mine.py", flags, arguments=", dtype=torch.float32")
    assert job["dtype"] == "fp32"
    assert "quantize" not in job
    assert job.get("attention", "sdpa") == "sdpa"
    keys = {note.key for note in notes if "the script loads the model without it" in note.text}
    assert keys == {"dtype", "attn_implementation", "load_in_4bit"}


def test_loading_by_the_flags(tmp_path: Path) -> None:
    arguments = ", dtype=model_args.dtype, attn_implementation=model_args.attn_implementation"
    job, notes = command(tmp_path, "mine.py", "--dtype bfloat16 --attn_implementation eager", arguments=arguments)
    assert (job["dtype"], job["attention"]) == ("bf16", "eager")
    assert not [note for note in notes if "has no effect" in note.text]


def test_a_dtype_of_the_script_that_is_the_flag_too(tmp_path: Path) -> None:
    job, notes = command(tmp_path, "mine.py", "--dtype bfloat16", arguments=", dtype=torch.bfloat16")
    assert job["dtype"] == "bf16"
    assert not [note for note in notes if "has no effect" in note.text]


def test_a_model_that_the_trainer_loads_without_them(tmp_path: Path) -> None:
    text = SCRIPT.format(before="", arguments="", trainer="").replace(
        "model=model", "model=model_args.model_name_or_path"
    )
    job, notes = answer(tmp_path, "mine.py", text, f"--dtype bfloat16 {PEFT}")
    assert (job["method"], job["dtype"]) == ("full", "fp32")
    assert {note.key for note in notes if "has no effect" in note.text} == {"use_peft", "dtype"}


def test_adapters_without_a_trainer_are_a_doubt(tmp_path: Path) -> None:
    text = SCRIPT.format(before="", arguments="", trainer="").rpartition("DPOTrainer(")[0]
    _, notes = answer(tmp_path, "mine.py", text, PEFT)
    assert [note.key for note in notes if note.kind == "doubt"] == ["use_peft"]
