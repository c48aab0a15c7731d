"""`--set` with a key of a section."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.planner.read_config import read

GRPO = """\
base_model: Qwen/Qwen2.5-1.5B-Instruct
adapter: lora
lora_r: 16
lora_target_linear: true
rl: grpo
trl:
  beta: 0.001
  use_vllm: true
  vllm_mode: colocate
  vllm_gpu_memory_utilization: 0.4
  vllm_max_model_len: 2048
  max_completion_length: 512
  num_generations: 4
sequence_len: 1024
micro_batch_size: 4
bf16: true
"""
MOVED = {"trl.vllm_gpu_memory_utilization": "", "trl.vllm_max_model_len": "", "vllm.gpu_memory_utilization": "0.35"}


def axolotl(folder: Path, settings: dict[str, str]) -> ParsedConfig:
    path = folder / "grpo.yaml"
    path.write_text(GRPO, encoding="utf-8")
    return read(from_path(path, None, {}).with_settings(settings), 1)


def test_keys_of_sections_are_set_and_removed(tmp_path: Path) -> None:
    """The section vllm is not in the file."""
    parsed = axolotl(tmp_path, {**MOVED, "trl.beta": "0", "trl.num_generations": "8"})
    assert (parsed.job["vllm_share"], parsed.job["num_generations"]) == (0.35, 8)
    assert "reference" not in parsed.job
    assert not any(note.kind == "unknown" for note in parsed.notes), parsed.notes


def test_an_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"--set trl.beta=0.04: beta: 0.04 takes a reference"):
        axolotl(tmp_path, {**MOVED, "trl.beta": "0.04", "adapter": "", "flash_attention": "true"})


def test_misplaced_keys_are_named_together_with_the_settings_that_move_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as raised:
        axolotl(tmp_path, {"trl.beta": "0"})
    text = str(raised.value)
    changes = (
        "trl.vllm_gpu_memory_utilization= trl.vllm_max_model_len= vllm.gpu_memory_utilization=0.4"
        " vllm.max_model_len=2048"
    )
    assert " ".join(f"set={pair}" for pair in changes.split()) in text
    assert "--vllm-share 0.4" in text, "the file's value, not axolotl's default"
    pairs = dict(pair.split("=") for pair in changes.split())
    assert axolotl(tmp_path, {"trl.beta": "0", **pairs}).job["vllm_share"] == 0.4


def test_mappings_in_a_command_and_keys_that_have_dots_of_their_own(tmp_path: Path) -> None:
    line = "--gradient_checkpointing_kwargs '{\"use_reentrant\": true}'"
    script = tmp_path / "run.sh"
    script.write_text(
        "trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name x --use_peft --load_in_8bit"
        f" --gradient_checkpointing true --max_length 512 {line}\n",
        encoding="utf-8",
    )
    found = from_path(script, None, {})
    before = read(found, 1).job["reentrant"]
    after = read(found.with_settings({"gradient_checkpointing_kwargs.use_reentrant": "false"}), 1).job.get(
        "reentrant", True
    )
    assert (before, after) == (True, False)
    script.write_text(
        "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-7B\n", encoding="utf-8"
    )
    job = read(from_path(script, None, {}).with_settings({"data.train_batch_size": "64"}), 1).job
    assert job["verl"]["samples"] == 64
