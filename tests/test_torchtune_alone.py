"""torchtune's recipes for one GPU, and what saves memory in them (tests/torchtune_alone_runs.jsonl)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.torchtune_alone import ALONE, recorded
from tests.trl_sharing import GPU
from vramplan import check, estimate, suggest
from vramplan.errors import VramplanError
from vramplan.frameworks.detect import from_words
from vramplan.planner.check import read

RECORDED = recorded()
FOLDER = Path(__file__).parent / "configs/torchtune"
WORST, MEDIAN = 0.0025, 0.0005
ALONE_8B = "full_finetune_single_device --config llama3_1/8B_full_single_device"
FULL = {name: value for name, value in ALONE.items() if name != "lora_dtype"}


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak, without that of loading, where the recipe makes weights twice.

    Of packed rows also without the optimizer's, before whose end the loop makes the next block mask.
    """
    left_out = {"loaded", "optimizer"} if row.get("packed") else {"loaded"}
    peaks, phases = estimated_peaks(row, GPU), row["peaks"].keys() - left_out
    assert phases <= peaks.keys()
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in phases}


def test_peaks_agree_with_torchtune() -> None:
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert len(RECORDED) >= 15
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


def job_of(line: str) -> dict[str, Any]:
    return read(from_words(["tune", "run", *line.split()], None, {}), 1).job


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "full_finetune_single_device --config llama3_1/8B_full_single_device",
            {"optimizer_in_backward": True, "optimizer": "paged_adamw_8bit", "gradient_accumulation_steps": 1},
        ),
        (
            "full_finetune_single_device --config llama2/7B_full_low_memory",
            {"optimizer_in_backward": True, "offloads_activations": True, "optimizer": "paged_adamw_32bit"},
        ),
        ("lora_finetune_single_device --config llama3_1/8B_qlora_single_device", {"quantize": "nf4", "method": "lora"}),
        (
            "lora_finetune_single_device --config llama3_2/3B_qlora_single_device enable_activation_offloading=True"
            " optimizer_in_bwd=True",  # which the recipe does not read
            {"quantize": "nf4", "offloads_activations": True},
        ),
        (
            "--nproc_per_node 2 full_finetune_distributed --config llama3_1/8B_full optimizer_in_bwd=True",
            {"optimizer_in_backward": True, "strategy": "fsdp", "optimizer": "adamw_torch_fused"},
        ),
        (
            "--nproc_per_node 8 lora_finetune_distributed --config llama3_3/70B_qlora enable_activation_offloading=True"
            " enable_activation_checkpointing=True",
            {"quantize": "nf4", "offloads_activations": True, "strategy": "fsdp", "num_gpus": 8},
        ),
        (
            f"{ALONE_8B} optimizer=torchao.optim.AdamW8bit optimizer_in_bwd=False",
            {"optimizer": "adamw_torch_8bit", "method": "full"},
        ),
        (
            "lora_finetune_single_device --config llama3/8B_qdora_single_device",
            {"quantize": "nf4", "method": "dora", "lora_dtype": "bf16"},
        ),
    ],
)
def test_what_saves_memory_is_read(line: str, expected: dict[str, Any]) -> None:
    job = job_of(line)
    assert {name: job[name] for name in expected} == expected
    assert ("optimizer_in_backward" in job) == ("optimizer_in_backward" in expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{ALONE_8B} gradient_accumulation_steps=2", "gradient_accumulation_steps 2 with optimizer_in_bwd"),
        (f"{ALONE_8B} clip_grad_norm=1.0", "clip_grad_norm 1.0 with optimizer_in_bwd: torchtune stops"),
        (
            f"{ALONE_8B} enable_activation_offloading=True enable_activation_checkpointing=False",
            "without enable_activation_checkpointing: torchtune stops",
        ),
        (
            "--nproc_per_node 8 full_finetune_distributed --config llama3_1/70B_full optimizer_in_bwd=True",
            "with fsdp_cpu_offload was not compared with a run",
        ),
        (
            "--nproc_per_node 8 full_dpo_distributed --config llama3_1/8B_full_dpo optimizer_in_bwd=True"
            " gradient_accumulation_steps=1",
            "in full_dpo_distributed was not compared with a run",
        ),
        (
            "lora_dpo_single_device --config llama3_1/8B_lora_dpo_single_device enable_activation_offloading=True",
            "in lora_dpo_single_device is not modelled yet",
        ),
        (
            "lora_dpo_single_device --config llama3_1/8B_lora_dpo_single_device model.use_dora=True",
            "DoRA",
        ),
    ],
)
def test_what_is_refused(line: str, message: str) -> None:
    with pytest.raises(VramplanError, match=message):
        job_of(line)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer_in_backward": True, "gradient_accumulation_steps": 2}, "torchtune stops at it with an optimizer"),
        ({"optimizer_in_backward": True, "method": "lora"}, "torchtune's full fine-tuning"),
        ({"optimizer_in_backward": True, "layers_of": "transformers"}, "layers_of torchtune"),
        ({"offloads_activations": True, "checkpointing": "none"}, "use checkpointing=full"),
        ({"offloads_activations": True, "layers_of": "transformers"}, "layers_of torchtune"),
    ],
)
def test_jobs_that_torchtune_does_not_run(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(VramplanError, match=message):
        estimate("llama-3.2-1b", "h100", **FULL | settings)


def test_a_search_proposes_no_accumulation_with_an_optimizer_in_backward() -> None:
    job = {name: value for name, value in FULL.items() if name != "micro_batch_size"}
    found = suggest("llama-3.2-1b", "h100", 8, **job, optimizer_in_backward=True)
    assert [(plan.micro_batch_size, plan.gradient_accumulation_steps) for plan in found.plans] == [(8, 1)]


def test_states_in_managed_memory_are_named() -> None:
    words = ["tune", "run", *ALONE_8B.split()]
    assumptions = check(words, "rtx4090", sequence_length=1024).estimate.assumptions
    assert any("about 14.96 GiB of optimizer states are managed memory" in text for text in assumptions)


@pytest.mark.parametrize(
    ("saves", "length", "least"),
    [("optimizer_in_bwd", 512, 3 << 30), ("enable_activation_offloading", 4096, 1 << 30)],
)
def test_they_save_memory(saves: str, length: int, least: int) -> None:
    words = ["tune", "run", "full_finetune_single_device", "--config", "llama3_2/3B_full_single_device"]
    off, on = (
        check([*words, f"{saves}={value}"], "h100", sequence_length=length).estimate.peak_allocated_bytes
        for value in (False, True)
    )
    assert off - on > least
