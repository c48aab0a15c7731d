"""``swift rlhf --rlhf_type grpo`` of vision-language models with images."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan import check
from vramplan.errors import UnsupportedError

COMMAND = (
    "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-VL-3B-Instruct --torch_dtype bfloat16 --dataset prompts.jsonl"
    " --max_length 2048 --max_completion_length 256 --num_generations 4 --per_device_train_batch_size 4"
    " --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.3 {}\n"
)


@pytest.mark.parametrize(
    "more",
    [
        "--train_type lora",
        "--train_type full --deepspeed zero3 --beta 0",
        "--train_type lora --freeze_vit false --max_pixels 501760",
    ],
)
def test_the_nearest_estimate_runs(tmp_path: Path, more: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"NPROC_PER_NODE=2 {COMMAND.format(more)}")
    with pytest.raises(UnsupportedError, match="nearest, TRL's own") as caught:
        check(path, gpu="h200", num_gpus=2)
    command = shlex.split(str(caught.value).partition("TRL's own: ")[2])
    ran = cli(*command[1:])
    assert ran.returncode in (0, 1), ran.stderr
    assert "GRPO" in ran.stdout
    assert "--image-size" in command
