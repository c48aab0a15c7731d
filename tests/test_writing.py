"""`suggest --for`: what is written, read again, is the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, cli, spec_of
from vramplan import verdict
from vramplan.defaults import complete_job
from vramplan.errors import UnsupportedError
from vramplan.frameworks.find import from_path, from_words
from vramplan.frameworks.shell import commands
from vramplan.frameworks.writing import WRITERS, write

QWEN = "Qwen/Qwen2.5-7B-Instruct"
JOBS: dict[str, dict[str, Any]] = {
    "lora": {"lora_rank": 16, "lora_dropout": 0.05, "micro_batch_size": 2, "gradient_accumulation_steps": 4},
    "targets": {"lora_targets": ("q_proj", "v_proj"), "checkpointing": "none", "sequence_length": 1024, "num_gpus": 2},
    "qlora": {"method": "qlora", "loss": "liger", "expandable_segments": True},
    "full": {"method": "full", "attention": "flash", "optimizer": "adamw_torch", "num_gpus": 4},
    "fp32": {"method": "full", "dtype": "fp32", "autocast": "bf16"},
}
OTHERWISE: dict[tuple[str, str], set[str]] = {
    ("trl", "lora"): {"loss"},
    ("trl", "targets"): {"loss"},
    ("trl", "qlora"): {"loss", "lora_dtype"},
    ("trl", "full"): {"loss"},
    ("trl", "fp32"): {"loss"},
    ("swift", "fp32"): {"autocast"},
    ("axolotl", "fp32"): {"dtype"},
    ("llamafactory", "full"): {"autocast"},
}
"""What a framework cannot be told, and is said: TRL 1.16 never has whole logits, its adapters on nf4 are bf16 ..."""


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("framework", WRITERS)
def test_what_is_written_comes_back(framework: str, name: str) -> None:
    job = complete_job(spec_of(QWEN), card_of(), JOBS[name])
    if (framework, name) == ("axolotl", "fp32"):
        with pytest.raises(UnsupportedError, match="fp32 embeddings"):  # axolotl loads bf16, and sdpa keeps these
            verdict.pasted(framework, QWEN, job)
        return
    if framework == "transformers" and name in ("targets", "qlora"):
        with pytest.raises(UnsupportedError, match="in the script's own code"):
            verdict.pasted(framework, QWEN, job)
        return
    text, notes = verdict.pasted(framework, QWEN, job)
    assert {note.split()[2] for note in notes} == OTHERWISE.get((framework, name), set())
    assert text.endswith("\n")


@pytest.mark.parametrize("framework", WRITERS)
def test_the_text_itself_is_read(framework: str, tmp_path: Path) -> None:
    """The lines as they are pasted, through the readers of files and commands."""
    job = complete_job(spec_of(QWEN), card_of(), JOBS["lora"])
    written = write(framework, QWEN, job)
    if written.is_file:
        path = tmp_path / "train.yaml"
        path.write_text(str(written))
        found = from_path(path, None, {})
    else:
        (command,) = commands(str(written), "pasted", {})
        words = [f"{name}={value}" for name, value in command.environment.items()] + command.words
        found = from_words(words, None, {})
    reading = verdict.read(found, 1)
    assert reading.model == QWEN
    assert reading.job["lora_rank"] == 16
    assert reading.job["micro_batch_size"] * reading.job["gradient_accumulation_steps"] == 8
    assert not [note for note in reading.notes if note.kind == "unknown" and note.key not in ("lora_r", "use_peft")]


def test_the_command() -> None:
    done = cli("suggest", QWEN, "--gpu", "rtx4090", "--global-batch", "16", "--for", "llamafactory")
    assert done.returncode == 0, done.stderr
    assert "gradient_accumulation_steps: 16" in done.stdout
    done = cli("suggest", QWEN, "--gpu", "rtx4090", "--global-batch", "16", "--for", "megatron")
    assert done.returncode == 2
    assert "known: swift, llamafactory, axolotl, trl, transformers" in done.stderr
