"""``swift rlhf --rlhf_type grpo`` of vision-language models with images."""

from __future__ import annotations

import shlex
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import cli
from tests.recorded_runs import errors_of
from tests.swift_seeing_grpo import recorded
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import UnsupportedError, VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.002, 0.00005

COMMAND = (
    "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-VL-3B-Instruct --torch_dtype bfloat16 --dataset prompts.jsonl"
    " --max_length 2048 --max_completion_length 256 --num_generations 4 --per_device_train_batch_size 4"
    " --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.3 {}\n"
)


def name_of(row: dict[str, Any]) -> str:
    return f"{row['seeing']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::6], ids=name_of)
def test_peaks_agree_with_swifts_own_trainer(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree() -> None:
    assert len(RECORDED) >= 20
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_a_command_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"MAX_PIXELS=501760 {COMMAND.format('--tuner_type lora')}")
    read = check(path, gpu="h200").estimate
    assert (read.job.loss, read.job.images, read.job.vision, read.job.projector) == (
        "logits_to_keep", 1, "frozen", "frozen"
    )  # fmt: skip
    path.write_text(COMMAND.format("--tuner_type lora --freeze_vit false --freeze_aligner false"))
    trains = check(path, gpu="h200", image_size=(700, 700)).estimate
    assert (trains.job.vision, trains.job.projector) == ("lora", "lora")
    assert not any("logits for prompts" in note for note in trains.notes)


def test_logits_begin_at_the_first_token_of_prompts_of_several_lengths(tmp_path: Path) -> None:
    path, peaks = tmp_path / "train.sh", []
    for generations in (4, 2):
        path.write_text(COMMAND.format(f"--tuner_type lora --num_generations {generations}"))
        peaks.append(check(path, gpu="h200", image_size=(700, 700)).estimate.phases["forward"])
    assert peaks[1] - peaks[0] > 4 * 2000 * 151_936 * 4


def test_a_frozen_tower_keeps_no_layer() -> None:
    """Checkpointing keeps each layer's input where a part of it trains."""
    job = {"task": "grpo", "loss": "logits_to_keep", "image_size": (1024, 1024), "prompt_length": 2000}
    job |= {"sequence_length": 2304, "generate_with": "vllm_server", "num_generations": 2, "micro_batch_size": 2}
    frozen, aligned = (
        estimate("qwen2.5-vl-3b-instruct", "h200", projector=part, **job).phases["forward"]
        for part in ("frozen", "lora")
    )
    layers = 2 * 32 * 5476 * 1280 * 2  # of patches of 14 x 14 pixels, in bf16
    assert aligned - frozen > 0.9 * layers


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "gemma-3-4b-it"}, "use loss=chunked"),
        ({"model": "qwen3-vl-4b-instruct", "strategy": "zero2", "num_gpus": 2, "autocast": "none"}, "use loss=chunked"),
        ({"videos": 1}, "use images=1"),
        ({"loss": "liger_logits_to_keep"}, "was not compared"),
    ],
)
def test_what_was_not_compared_is_refused(settings: dict[str, Any], said: str) -> None:
    job = {"model": "qwen2.5-vl-3b-instruct", "task": "grpo", "loss": "logits_to_keep", "generate_with": "vllm_server"}
    job |= {"prompt_length": 2000, "sequence_length": 2304, "num_generations": 2, "micro_batch_size": 2, **settings}
    with pytest.raises(VramplanError, match=said):
        estimate(gpu="h200", **job)


@pytest.mark.parametrize(
    "more",
    [
        "--tuner_type lora --use_liger_kernel true",
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


def test_versions_and_forwards_that_were_not_compared_are_refused(tmp_path: Path) -> None:
    """Before 4.6 a frozen tower keeps each layer's input; under DeepSpeed Qwen3-VL has a forward of its own."""
    path = tmp_path / "train.sh"
    path.write_text(COMMAND.format("--tuner_type lora"))
    with pytest.raises(UnsupportedError, match="nearest"):
        check(path, gpu="h200", framework_version="4.5.2")
    qwen3 = COMMAND.replace("Qwen2.5-VL-3B", "Qwen3-VL-4B") + " --vllm_max_model_len 4096"
    path.write_text(qwen3.replace("\n", "").format("--tuner_type lora"))
    assert check(path, gpu="h200", look_further=False).estimate.job.images == 1
    path.write_text(qwen3.replace("\n", "").format("--tuner_type lora --deepspeed zero2"))
    with pytest.raises(UnsupportedError, match="nearest"):
        check(path, gpu="h200")
