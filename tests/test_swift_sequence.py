"""GPUs that share the tokens of each text in ms-swift (``sequence_parallel_size``)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.swift_sequence import recorded
from tests.test_trl_sharing_grpo import errors_of, name_of
from vramplan import check, estimate
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.job import Job
from vramplan.planner.export import export

RECORDED = recorded()
WORST, MEDIAN = 0.003, 0.0001
COMMAND = (
    "CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 {} swift {} --model Qwen/Qwen2.5-7B --tuner_type lora"
    " --torch_dtype bfloat16 --dataset data.jsonl --max_length 4096 --sequence_parallel_size {}\n"
)
FLASH = "--attn_impl flash_attn"
SFT = f"sft --padding_free true {FLASH}"


def job_of_command(folder: Path, command: str, gpus: int = 4, variable: str = "") -> Job:
    path = folder / "train.sh"
    path.write_text(COMMAND.format(variable, command, gpus))
    job: Job = check(path, gpu="h200").estimate.job
    return job


@pytest.mark.parametrize("row", RECORDED[::9], ids=name_of)
def test_peaks_agree_with_swift(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_swift() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert len(errors) == 13
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_a_row_is_shared(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, f"{SFT} --per_device_train_batch_size 2 --gradient_accumulation_steps 4")
    assert (job.swift.sequence_parallel, job.sequence_length, job.micro_batch_size) == (4, 4096, 2)
    assert (job.data_parallel, job.global_batch_size) == (1, 8)


def test_losses_of_so_many_tokens_at_a_time(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, SFT, variable="CELOSS_PARALLEL_SIZE=2048")
    assert job.swift.cross_entropy_chunk == 2048


def test_ligers_head_is_left_out(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, f"{SFT} --use_liger_kernel true")
    assert (job.loss, bool(job.fused_kernels)) == ("standard", True)


def test_grpo_has_micro_batches_of_all_gpus(tmp_path: Path) -> None:
    """Each of the GPUs that share a text brings its own (grpo_trainer.py: __init__)."""
    more = "--num_generations 4 --per_device_train_batch_size 4 --use_vllm true --vllm_mode server"
    job = job_of_command(tmp_path, f"rlhf --rlhf_type grpo {FLASH} {more} --gradient_accumulation_steps 2", 2)
    assert (job.gradient_accumulation_steps, job.global_batch_size) == (4, 32)


@pytest.mark.parametrize(
    ("command", "gpus", "said"),
    [
        (SFT, 3, "3 does not divide 4 GPUs: ms-swift stops at that; give 2"),
        (f"{SFT} --task_type seq_cls --num_labels 2", 4, "sequence_parallel_size="),
        ("rlhf --rlhf_type kto", 4, "sequence_parallel_size="),
        ("sft --attn_impl sdpa", 4, "attention"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, command: str, gpus: int, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        job_of_command(tmp_path, command, gpus)


SHARED: dict[str, Any] = {
    "num_gpus": 4,
    "sequence_length": 2048,
    "attention": "flash",
    "swift": {"sequence_parallel": 4},
}


@pytest.mark.parametrize(
    "settings",
    [
        {"batches": "packed", "swift": {"sequence_parallel": 4, "cross_entropy_chunk": 1024}},
        {
            "task": "grpo",
            "loss": "logits_to_keep",
            "prompt_length": 512,
            "generate_with": "vllm_server",
            "gradient_accumulation_steps": 8,
            "steps_per_generation": 16,
            "num_generations": 4,
            "vllm_sync_parts": 1,
        },
    ],
)
def test_a_command_is_written_and_read_back(tmp_path: Path, settings: dict[str, Any]) -> None:
    job = estimate("qwen2.5-7b", "h200", **{**SHARED, **settings}).job
    path = tmp_path / "train.sh"
    path.write_text(export("swift", "qwen2.5-7b", job, "h200").text)
    read = check(path, gpu="h200").estimate.job
    assert {name: getattr(read, name) for name in {**SHARED, **settings}} == {
        name: getattr(job, name) for name in {**SHARED, **settings}
    }


def test_gradients_over_the_logits(tmp_path: Path) -> None:
    """Up to 4.5; they are a tensor of their own since."""
    command = COMMAND.format("CELOSS_PARALLEL_SIZE=1024", SFT, 4).replace("--tuner_type", "--train_type")
    path = tmp_path / "train.sh"
    path.write_text(command)
    job = check(path, gpu="h200").estimate.job
    assert job.swift.chunks_in_place
    settings = {**SHARED, "batches": "packed", "sequence_length": 65536, "method": "lora", "lora_rank": 8}

    def backward(**more: bool) -> int:
        swift = {"sequence_parallel": 4, "cross_entropy_chunk": 1024, **more}
        return estimate("qwen2.5-7b", "h200", **{**settings, "swift": swift}).phases["backward"]

    logits = 65536 // 4 * 152_064 * 4
    chunks = 4 * 1024 * 152_064 * 4
    apart, in_place = logits + chunks, logits // 2  # beside the logits; in place the same in bf16 is the most
    assert backward() - backward(chunks_in_place=True) == pytest.approx(apart - in_place, rel=0.01)


def test_rings_are_refused() -> None:
    """Two heads of keys, so that two GPUs would share them, and two such pairs attend in a ring."""
    with pytest.raises(ConfigError, match="stops at that without padding_free"):
        estimate("qwen2.5-1.5b", "h100", **SHARED)
    with pytest.raises(UnsupportedError, match=r"in a ring, which is not modelled yet; nearest.*: 2"):
        estimate("qwen2.5-1.5b", "h100", batches="packed", **SHARED)


def test_activations_are_shared_and_weights_are_not() -> None:
    settings: dict[str, Any] = {**SHARED, "batches": "packed", "sequence_length": 32768}
    whole, shared = (
        estimate("qwen2.5-7b", "h200", **{**settings, "swift": {"sequence_parallel": gpus}}).phases for gpus in (1, 4)
    )
    assert whole["loaded"] == shared["loaded"]
    assert (whole["backward"] - whole["loaded"]) / (shared["backward"] - shared["loaded"]) == pytest.approx(4, rel=0.05)
