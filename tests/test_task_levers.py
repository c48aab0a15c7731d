"""What is proposed for GRPO: fewer completions generated at a time, and ms-swift's smaller parts for vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check, estimate, suggest

JOB: dict[str, Any] = {
    "task": "grpo", "method": "lora", "sequence_length": 1024, "prompt_length": 256, "generate_with": "transformers",
}  # fmt: skip


def test_fewer_completions_at_a_time() -> None:
    found = suggest("Qwen/Qwen2.5-0.5B-Instruct", "rtx3060-12gb", 1024, **JOB)
    assert found.recommended is None
    (effect,) = (one for one in found.advice if "steps_per_generation" in one.update)
    assert (effect.change, effect.fits, effect.update) == (
        "--steps-per-generation 8",
        True,
        {"steps_per_generation": 8},
    )
    changed = estimate(
        "Qwen/Qwen2.5-0.5B-Instruct",
        "rtx3060-12gb",
        micro_batch_size=effect.micro_batch_size,
        gradient_accumulation_steps=1024 // effect.micro_batch_size,
        **JOB,
        **effect.update,
    )
    assert changed.device_total_bytes == effect.device_total_bytes


def test_not_where_as_few_are_generated() -> None:
    found = suggest("Qwen/Qwen2.5-7B-Instruct", "rtx3060-12gb", 64, **JOB, steps_per_generation=8)
    assert not any("steps_per_generation" in one.update for one in found.advice)


@pytest.mark.full
def test_smaller_parts_for_vllm(tmp_path: Path) -> None:
    """ms-swift gathers all weights at once for vLLM unless it is told otherwise."""
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-32B-Instruct --tuner_type full"
        " --torch_dtype bfloat16 --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4"
        " --vllm_max_model_len 4096 --vllm_tensor_parallel_size 4 --max_length 1024 --max_completion_length 1024"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --num_generations 8 --deepspeed zero3"
        " --sleep_level 1 --offload_model true --offload_optimizer true\n"
    )
    found = check(path, gpu="a100-80gb", num_gpus=8)
    assert not found.fits
    parts = [one for one in found.advice if one.settings == ("--move_model_batches 16",)]
    changed = check(path, gpu="a100-80gb", num_gpus=8, settings={"move_model_batches": "16"})
    assert [one.device_total_bytes for one in parts] == [changed.estimate.device_total_bytes]
