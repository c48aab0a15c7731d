"""PPO of ms-swift, and of TRL under DeepSpeed: against runs of their trainers, what is read, refused and written."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import cli
from tests.ppo_sharing import recorded
from tests.recorded_runs import estimated_peaks
from tests.trl_sharing import GPU
from vramplan import check, estimate
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.planner.export import export

RECORDED = recorded()
WORST, MEDIAN = 0.002, 0.0005
SCORING = 0.03
"""Where scoring begins the scores of two generations are there, which a run counts to the generation."""
MODEL, SCORER = "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B"
COMMAND = f"swift rlhf --rlhf_type ppo --model {MODEL} --reward_model {SCORER} --dataset data.jsonl --max_length 512"


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak but for loading's, where DeepSpeed's engines are made one by one."""
    peaks = estimated_peaks(row, GPU)
    phases = peaks.keys() & row["peaks"].keys() - {"loaded"}
    assert len(phases) == 6
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in phases}


def name_of(row: dict[str, Any]) -> str:
    names = "ppo_trainer", "method", "strategy", "sequence_length"
    return " ".join(str(row["job"].get(name, "")) for name in names)


@pytest.mark.parametrize("row", RECORDED[::5], ids=name_of)
def test_peaks_agree_with_the_trainers(row: dict[str, Any]) -> None:
    errors = errors_of(row)
    assert errors.pop("scoring") <= SCORING
    assert max(errors.values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_the_trainers() -> None:
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert len(errors) == 12
    assert max(each.pop("scoring") for each in errors.values()) <= SCORING
    assert not [(name, each) for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def job_of(tmp_path: Path, more: str, num_gpus: int = 1) -> Job:
    path = tmp_path / "ppo.sh"
    path.write_text(f"NPROC_PER_NODE={num_gpus} {COMMAND} {more}\n")
    return check(path, "h100", num_gpus=num_gpus, look_further=False).estimate.job


def test_a_command_with_adapters(tmp_path: Path) -> None:
    more = "--tuner_type lora --lora_rank 8 --deepspeed zero2 --response_length 256 --gradient_accumulation_steps 4"
    job = job_of(tmp_path, more, num_gpus=4)
    assert (job.task, job.ppo_trainer, job.strategy, job.num_gpus) == ("ppo", "ms_swift", "zero2", 4)
    assert (job.value_model, job.reward_model, job.dtype_of_values) == (SCORER, SCORER, "bf16")
    assert (job.prompt_length, job.sequence_length, job.rollout_batch_size) == (512, 768, 64)
    assert (job.reference_source, job.checkpointing, job.autocast) == ("adapters_off", "none", "none")


def test_a_full_command_on_one_gpu(tmp_path: Path) -> None:
    """transformers' Trainer is made first, whose Accelerator decides the autocast of TRL's."""
    job = job_of(tmp_path, "--tuner_type full --torch_dtype bfloat16 --local_rollout_forward_batch_size 8")
    assert (job.reference_source, job.autocast, job.rollout_batch_size) == ("model", "bf16", 8)
    assert (job.prompt_length, job.sequence_length) == (512, 1024)


def test_the_value_model_trains_adapters_where_the_policy_does() -> None:
    settings: dict[str, Any] = {
        "task": "ppo", "value_model": SCORER, "reward_model": SCORER, "sequence_length": 256, "prompt_length": 128,
    }  # fmt: skip
    trl, swift = (estimate(MODEL, "h100", ppo_trainer=name, **settings) for name in ("trl", "ms_swift"))
    assert trl.num_trainable_parameters > 1.5e9 > 20e6 > swift.num_trainable_parameters
    assert swift.peak_allocated_bytes < trl.peak_allocated_bytes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--tuner_type lora --adapters a", "adapters"),
        ("--tuner_type lora --reward_adapters a", "reward_adapters"),
        ("--tuner_type lora --ref_model other", "stops at ref_model beside adapters"),
        ("--tuner_type full --ref_model other", "other than the model itself"),
        ("--tuner_type full --use_liger_kernel true", "use_liger_kernel"),
        ("--tuner_type lora --use_vllm true", "has no effect"),
        ("--tuner_type lora --quant_method bnb --quant_bits 4", "quant_bits"),
        ("--tuner_type lora --padding_free true --attn_impl flash_attn", "ms-swift stops at it"),
        ("--tuner_type full --deepspeed zero3_offload", "zero3_offload with rlhf_type ppo is not modelled; nearest"),
        ("--tuner_type full --fsdp fsdp2", "under fsdp is not modelled; nearest, under ZeRO-3: vramplan estimate"),
        ("--tuner_type lora --reward_model a b", "with 2 reward models"),
        ("--tuner_type lora --num_mini_batches 3 --gradient_accumulation_steps 4", "expected a divisor"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        job_of(tmp_path, more, num_gpus=2 if "deepspeed" in more or "fsdp" in more else 1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_adapters_on_several_gpus_without_deepspeed_stop(tmp_path: Path) -> None:
    with pytest.raises(VramplanError, match="asks DistributedDataParallel for the policy"):
        job_of(tmp_path, "--tuner_type lora", num_gpus=2)


def test_the_written_command_is_read_as_the_job(tmp_path: Path) -> None:
    job = job_of(tmp_path, "--tuner_type lora --deepspeed zero2 --gradient_accumulation_steps 4", num_gpus=2)
    path = tmp_path / "written.sh"
    path.write_text(export("swift", MODEL, job, "h100").text)
    again = check(path, "h100", num_gpus=2, look_further=False).estimate.job
    assert again == job


def test_the_nearest_of_fsdp_with_adapters_is_one_that_runs(tmp_path: Path) -> None:
    with pytest.raises(VramplanError, match=r"nearest, under ZeRO-3: .* --lora-dtype bf16 .*--strategy zero3"):
        job_of(tmp_path, "--tuner_type lora --fsdp fsdp2", num_gpus=2)


def test_zero_3_stops_at_adapters_and_a_head_of_two_dtypes(tmp_path: Path) -> None:
    """DeepSpeed 0.19, runtime/zero/utils.py: defragment; seen in a run of ms-swift's PPOTrainer."""
    for more, way in (
        ("--tuner_type lora", "the head that trains beside them bf16; give --set lora_dtype=bfloat16"),
        (
            "--train_type lora --lora_dtype bfloat16",
            "(before 4.6 lora_dtype has no effect); give --set lora_dtype=bfloat16 and --framework-version 4.6, or"
            " --set deepspeed=zero2",
        ),
        (
            "--tuner_type lora --torch_dtype float32 --lora_dtype float32",
            "fp16, as torch_dtype float32 switches fp16 on, in which DeepSpeed loads the model; give --set"
            " lora_dtype=float16",
        ),
    ):
        path = tmp_path / "ppo.sh"
        path.write_text(f"NPROC_PER_NODE=2 {COMMAND} {more} --deepspeed zero3\n")
        result = cli("check", str(path), "--gpu", "h100", "--num-gpus", "2")
        assert result.returncode == 2
        assert result.stderr.endswith(f"{way}\n")
    job = job_of(tmp_path, "--tuner_type lora --deepspeed zero3 --lora_dtype bfloat16", num_gpus=2)
    assert (job.strategy, job.lora_dtype) == ("zero3", "bf16")
