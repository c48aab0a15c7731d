"""``swift rlhf --rlhf_type grpo`` read as ms-swift's own GRPOTrainer runs it (3.12, 4.6)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import errors_of, estimated_peaks
from tests.swift_grpo import recorded
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.planner.export import export
from vramplan.units import GiB

RECORDED = [row for row in recorded() if row["job"]["loss"] != "standard"]
OLDER = [row for row in recorded() if row["job"]["loss"] == "standard"]
"""Runs of 4.3, whose log-probabilities are by TRL's function (0.29)."""
WORST, MEDIAN = 0.003, 0.00001
COMMAND = (
    "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --torch_dtype bfloat16 --dataset prompts.jsonl"
    " --max_length 512 --max_completion_length 256 --num_generations 4 --per_device_train_batch_size 4 {}\n"
)
COLOCATED = "--use_vllm true --vllm_mode colocate"


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} " + " ".join(f"{name}={value}" for name, value in {**row["job"], **row["options"]}.items())


def check_command(folder: Path, more: str) -> Any:
    path = folder / "train.sh"
    says = any(name in more for name in ("tuner_type", "train_type", "sft_type"))
    path.write_text(COMMAND.format(more if says else f"--tuner_type lora {more}"))
    return check(path, gpu="a100-80gb", look_further=False)


def job_of_command(folder: Path, more: str) -> Job:
    job: Job = check_command(folder, more).estimate.job
    return job


@pytest.mark.parametrize("row", RECORDED[::7], ids=name_of)
def test_peaks_agree_with_swifts_own_trainer(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree() -> None:
    assert len(RECORDED) >= 40
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


@pytest.mark.parametrize("row", OLDER, ids=name_of)
def test_trls_function_needs_as_much_in_backward(row: dict[str, Any]) -> None:
    """It drops the logits that it divided, which TRL from 1.10 on holds: one copy less before backward."""
    peaks, run = estimated_peaks(row, GPU), row["peaks"]
    assert abs(peaks["backward"] / run["backward"] - 1) <= MEDIAN
    assert all(run[phase] <= peaks[phase] <= 1.001 * peaks["backward"] for phase in ("scoring", "forward"))


def test_defaults(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, COLOCATED)
    assert (job.task, job.loss, job.reference, job.batches) == ("grpo", "logits_to_keep", "adapters_off", "padded")
    assert (job.prompt_length, job.sequence_length, job.gradient_accumulation_steps) == (512, 768, 1)
    assert (job.generate_with, job.vllm_share, job.lora_dropout) == ("vllm", 0.9, 0.05)


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        (f"{COLOCATED} --sleep_level 2 --vllm_gpu_memory_utilization 0.5", {"generate_with": "vllm_sleep"}),
        ("--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1", {"generate_with": "vllm_server"}),
        ("--use_vllm false", {"generate_with": "transformers"}),
        ("--beta 0", {"reference": None}),
        ("--tuner_type full", {"reference": "model"}),
        ("--tuner_type full --beta 0", {"reference": None}),
        ("--train_type lora", {"loss": "standard"}),
        ("--padding_free true --attn_impl flash_attn", {"loss": "logits_to_keep"}),
        ("--generation_batch_size 32", {"steps_per_generation": 8}),
        ("--steps_per_generation 3 --gradient_accumulation_steps 6", {"steps_per_generation": 3}),
        ("--num_iterations 2", {"num_iterations": 2}),
        (f"{COLOCATED} --vllm_max_model_len 600", {"sequence_length": 600, "prompt_length": 344}),
        (f"{COLOCATED} --vllm_max_model_len 4096", {"sequence_length": 768, "vllm_max_length": 4096}),
        (
            f"{COLOCATED} --vllm_max_model_len 4096 --multi_turn_scheduler math_tip_trick --max_turns 3",
            {"sequence_length": 4096, "prompt_length": 1},
        ),
        (
            f"{COLOCATED} --sleep_level 1 --offload_model true --offload_optimizer true --move_model_batches 8",
            {"rollout_offload": "all", "vllm_sync_parts": 8},
        ),
        (
            f"{COLOCATED} --sleep_level 1 --offload_optimizer true",
            {"rollout_offload": "optimizer", "vllm_sync_parts": 1},
        ),
        ("--padding_free true --attn_impl flash_attn", {"batches": "packed", "prompt_length": 512}),
        (
            "--packing true --packing_length 64 --attn_impl flash_attn --num_generations 2",  # no packs are made
            {"batches": "packed", "sequence_length": 768, "prompt_length": 512},
        ),
        ("--log_entropy true", {"entropy_graph": True}),
        ("--loss_type fipo --delta 10", {"loss": "logits_to_keep"}),
        ("--teacher_model_server http://127.0.0.1:8000 --num_generations 1", {"num_generations": 1, "teacher": None}),
        ("--deepspeed zero3_offload --use_vllm true --vllm_mode server", {"offload": "all", "strategy": "zero3"}),
        ("--top_entropy_quantile 0.2", {"entropy_graph": True}),
        ("--train_type lora --log_entropy true", {"entropy_graph": False, "loss": "standard"}),
        ("--use_liger_kernel true", {"loss": "liger_logits_to_keep", "entropy_graph": False}),
        ("--num_generations 2", {"prompt_length": 1, "sequence_length": 768}),
        ("--vllm_enable_lora true --use_vllm true --vllm_mode server --async_generate true", {"task": "grpo"}),
        ("--loss_type dapo --epsilon_high 0.28 --dynamic_sample true --overlong_filter true", {"task": "grpo"}),
        ("--importance_sampling_level sequence --scale_rewards none", {"task": "grpo"}),
    ],
)
def test_settings(tmp_path: Path, more: str, fields: dict[str, Any]) -> None:
    job = job_of_command(tmp_path, more)
    assert {name: getattr(job, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--use_vllm true", "vllm_mode"),
        ("--vllm_mode colocate", "use_vllm"),
        ("--generation_batch_size 6", "generation_batch_size"),
        ("--num_generations 3", "does not divide"),
        ("--num_generations 1", "stops at 1 without a teacher"),
        ("--deepspeed zero3_offload --use_vllm false", "with vLLM"),
        ("--reward_model Qwen/Qwen2.5-0.5B", "reward_model"),
        ("--train_type lora --padding_free true --attn_impl flash_attn", "padding_free.*framework_version=4.1"),
        ("--padding_free true --attn_impl flash_attn --use_liger_kernel true", "stops at it with padding_free"),
        (f"{COLOCATED} --multi_turn_scheduler tool_call", "multi_turn_scheduler"),
        ("--loss_type other", "loss_type"),
        ("--sequence_parallel_size 2", "sequence_parallel_size"),
        ("--teacher_model Qwen/Qwen2.5-7B", "teacher_model"),
        ("--ref_adapters a", "ref_adapters"),
        ("--ref_model other", "ref_model"),
        ("--tuner_type full --ref_model other", "ref_model"),
        ("--use_liger_kernel true --log_entropy true", "log_entropy"),
        ("--use_liger_kernel true --importance_sampling_level sequence_token", "sequence_token"),
        ("--train_type lora --use_liger_kernel true", "before 4.4"),
        (f"{COLOCATED} --quant_method bnb --quant_bits 4", "quant_bits"),
        ("--tuner_type full --fsdp fsdp2", "fsdp"),
        ("--sft_type lora", "--task grpo"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        check_command(tmp_path, more)


SHARED: dict[str, Any] = {
    "task": "grpo", "loss": "logits_to_keep", "sequence_length": 1024, "prompt_length": 512, "num_generations": 8,
    "gradient_accumulation_steps": 8, "generate_with": "vllm_sleep", "vllm_share": 0.5, "vllm_sync_parts": 1,
}  # fmt: skip
WEIGHTS = 7_615_616_512 * 2
"""Of Qwen/Qwen2.5-7B in bf16."""

EMBEDDINGS = 2 * 152_064 * 3584 * 2
"""Those and the head, which are more than four of its layers."""


def phases(**settings: Any) -> dict[str, int]:
    return estimate("qwen2.5-7b", "h200", **{**SHARED, **settings}).phases


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_moves_to_the_host_makes_room_for_the_cache(method: str) -> None:
    stays, without_states, without_weights, empty = (
        phases(method=method, rollout_offload=what)["generation"] for what in ("none", "optimizer", "model", "all")
    )
    assert stays - without_weights == pytest.approx(WEIGHTS, rel=0.03)
    assert without_states - empty == pytest.approx(WEIGHTS, rel=0.03)
    assert empty == pytest.approx(0.5 * 143_771 * 2**20, rel=0.02), "vLLM alone"


def test_weights_come_back_beside_deepspeeds_buffer() -> None:
    """Its parameters are views of a buffer that stays: what moved off comes back as a copy, until it steps."""
    zero2 = {"method": "full", "strategy": "zero2", "num_gpus": 8, "autocast": "none"}
    stays, moves = (phases(**zero2, rollout_offload=what) for what in ("none", "model"))
    assert moves["backward"] - stays["backward"] == pytest.approx(WEIGHTS, rel=0.01)
    assert moves["loaded"] == stays["loaded"]


def test_all_weights_are_gathered_for_vllm_or_some_layers() -> None:
    zero3 = {"strategy": "zero3", "num_gpus": 8, "autocast": "none", "generate_with": "vllm_server", "vllm_share": 0.3}
    for method in ("lora", "full"):
        whole, parts = (phases(method=method, **zero3, vllm_sync_parts=count)["generation"] for count in (1, 7))
        assert whole - parts == pytest.approx(WEIGHTS - EMBEDDINGS, rel=0.01)


def test_a_reference_is_sharded_under_zero3() -> None:
    zero3 = {"method": "full", "strategy": "zero3", "num_gpus": 8, "autocast": "none"}
    alone, beside = (phases(**zero3, reference=reference)["loaded"] for reference in ("none", "model"))
    assert beside - alone == pytest.approx(WEIGHTS / 8, rel=0.03)
    assert alone < 10 * GiB


def test_expandable_segments_are_switched_off_while_vllm_is_awake(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    more = f"--tuner_type lora {COLOCATED} --sleep_level 1 --vllm_gpu_memory_utilization 0.4"
    path.write_text(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {COMMAND.format(more)}")
    assert check(path, gpu="a100-80gb", look_further=False).estimate.job.expandable_segments


def test_one_row_has_logits_of_all_prompts_but_the_first() -> None:
    """So padding_free needs more than padded rows that are full, and as much with one sample."""
    settings = {**SHARED, "generate_with": "vllm_server", "vllm_share": 0.3, "attention": "flash"}

    def backward(samples: int, batches: str) -> int:
        row = {**settings, "micro_batch_size": samples, "batches": batches}
        return estimate("qwen2.5-0.5b", "h200", **row).phases["backward"]

    assert backward(1, "packed") == pytest.approx(backward(1, "padded"), rel=0.001)
    logits = 512 * 151_936 * 4
    assert backward(4, "packed") - backward(4, "padded") > 3 * 2 * logits


def test_a_micro_batch_of_several_prompts_has_to_say_where_logits_begin() -> None:
    settings = {
        **SHARED,
        "generate_with": "vllm_server",
        "vllm_share": 0.3,
        "micro_batch_size": 3,
        "num_generations": 4,
    }
    with pytest.raises(VramplanError, match="shortest"):
        estimate("qwen2.5-0.5b", "h200", **settings)
    estimate("qwen2.5-0.5b", "h200", **{**settings, "prompt_length": 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "lora", "lora_dropout": 0.05, "reference": "adapters_off", "rollout_offload": "all"},
        {"method": "full", "reference": "model", "steps_per_generation": 4, "entropy_graph": True},
        {
            "method": "lora",
            "generate_with": "vllm_server",
            "vllm_share": 0.3,
            "strategy": "zero3",
            "vllm_sync_parts": 4,
        },
        {"method": "lora", "generate_with": "transformers", "vllm_share": 0.3, "num_iterations": 2},
    ],
)
def test_a_command_is_written_and_read_back(tmp_path: Path, settings: dict[str, Any]) -> None:
    job = estimate("qwen2.5-0.5b", "h200", **{**SHARED, "micro_batch_size": 2, **settings}).job
    written = export("swift", "qwen2.5-0.5b", job, "h200")
    path = tmp_path / "train.sh"
    path.write_text(written.text)
    read = check(path, gpu="h200", look_further=False).estimate.job
    fields = (set(SHARED) | set(settings)) - {"vllm_sync_parts"}
    assert {name: getattr(read, name) for name in fields} == {name: getattr(job, name) for name in fields}


def test_weights_on_the_host_before_its_own_log_probabilities(tmp_path: Path) -> None:
    """TRL's function takes them before 4.4: a file of those versions names one that is modelled."""
    path = tmp_path / "grpo.sh"
    path.write_text(
        "NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --train_type full --dataset d.jsonl"
        " --max_length 512 --use_vllm true --vllm_mode colocate --num_generations 2 --per_device_train_batch_size 2"
        " --sleep_level 1 --deepspeed zero3_offload\n"
    )
    with pytest.raises(VramplanError, match=r"before 4\.4 is not modelled; nearest: .*4\.6\.0"):
        check(path, "h100", num_gpus=2, look_further=False)
    assert check(path, "h100", num_gpus=2, look_further=False, framework_version="4.6.0").estimate.job.offload == "all"
