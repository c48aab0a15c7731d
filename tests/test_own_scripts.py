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


def test_trls_own_script_is_read_by_its_name(tmp_path: Path) -> None:
    text = HEADER + SCRIPT.format(before=CHANGED, arguments="", trainer="").replace("HfArgumentParser", "TrlParser")
    job, notes = answer(tmp_path, "dpo.py", text)
    assert job["micro_batch_size"] == 1
    assert any("dpo.py is taken for TRL's own script" in note.text for note in notes)


def test_a_script_of_which_nothing_is_read_is_a_doubt(tmp_path: Path) -> None:
    _, notes = answer(tmp_path, "dpo.py", "from elsewhere import main\nmain()\n")
    assert any(note.kind == "doubt" and "dpo.py" in note.text for note in notes)
