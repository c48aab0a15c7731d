"""torchtune's recipes for several GPUs against the estimates (tests/torchtune_sharing_runs.jsonl)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.torchtune_sharing import SHARED, recorded
from tests.trl_sharing import GPU
from vramplan import check, estimate
from vramplan.errors import ConfigError, VramplanError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.planner.check import read

RECORDED = recorded()
FOLDER = Path(__file__).parent / "configs/torchtune"
WORST, MEDIAN = 0.0015, 0.0005
SHARDED = ("full_finetune_distributed", "full_sharded.yaml", "--nproc_per_node=8")


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak; of torch's cross-entropy that of the run, whose forward is less.

    transformers' loss keeps the half-precision logits in the forward, where torchtune's model drops them.
    """
    peaks, phases = estimated_peaks(row, GPU), row["peaks"].keys() - {"loaded"}
    assert phases <= peaks.keys()
    if row["job"]["loss"] == "standard":
        assert all(peaks[phase] >= row["peaks"][phase] for phase in phases)
        phases = {max(phases, key=row["peaks"].__getitem__)}
    return {phase: abs(peaks[phase] / row["peaks"][phase] - 1) for phase in phases}


def test_peaks_agree_with_torchtune() -> None:
    errors = [error for row in RECORDED for error in errors_of(row).values()]
    assert len(RECORDED) >= 23
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


def job_of(recipe: str, file: str, *words: str) -> dict[str, Any]:
    """What is read of a command of ``tune run``."""
    command = ["tune", "run", *(word for word in words if word.startswith("-")), recipe, "--config", str(FOLDER / file)]
    overrides = [word for word in words if not word.startswith("-")]
    return read(from_words([*command, *overrides], None, {}), 1).job


TWO = "--nproc_per_node=2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("lora_dpo_distributed", "dpo.yaml", "--nproc_per_node=4"), {"task": "dpo", "method": "lora", "num_gpus": 4}),
        (("full_dpo_distributed", "full_dpo.yaml", TWO), {"task": "dpo", "method": "full"}),
        (
            ("full_finetune_distributed", "full_sharded.yaml", "--nnodes=2", "--nproc_per_node=8"),
            {"num_gpus": 16, "num_nodes": 2, "offload": "all"},
        ),
        (("lora_finetune_distributed", "lora.yaml", TWO), {"method": "lora", "loss": "sections", "num_gpus": 2}),
    ],
)
def test_what_recipes_share(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    job = job_of(*words)
    assert {name: job[name] for name in expected} == expected
    assert job["strategy"] == "fsdp"
    assert job["fsdp"]["sync_each_batch"]
    assert job["fsdp"]["wraps_embeddings"] == ("full_sharded.yaml" in words)


def test_gpus_of_the_machine_choose_the_recipe() -> None:
    jobs = [read(from_path(FOLDER / "dpo.yaml", None, {}), count).job for count in (1, 4)]
    assert [job.get("strategy") for job in jobs] == [None, "fsdp"]
    assert job_of("lora_dpo_single_device", "dpo.yaml")["num_gpus"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lora_dpo_distributed", "dpo.yaml"), "say how many: tune run --nproc_per_node 2, or num_gpus=2"),
        (("full_dpo_distributed", "dpo.yaml", TWO), "does not go with a model that is built for lora"),
        (("lora_finetune_distributed", "dpo.yaml", TWO), "does not train with torchtune.rlhf.loss.DPO"),
        (("lora_dpo_distributed", "lora.yaml", TWO), "is no loss of lora_dpo_distributed"),
        (("full_dpo_distributed", "full_dpo.yaml", TWO, "loss._component_=torchtune.rlhf.loss.SimPOLoss"), "modelled"),
        ((*SHARDED, "custom_sharded_layers=[output]"), "or none"),
        ((*SHARDED, "model._component_=torchtune.models.llama3_2.llama3_2_1b"), "leave it out"),
        ((*SHARDED, "tensor_parallel_dim=2"), "tensor_parallel_dim"),
        (
            (*SHARDED, "optimizer._component_=bitsandbytes.optim.AdamW8bit"),
            "was not compared with a run",
        ),
        ((*SHARDED, "optimizer_in_bwd=True"), "with fsdp_cpu_offload was not compared"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        job_of(*words)


@pytest.mark.parametrize(
    ("file", "what"), [("full_dpo", "full_dpo_distributed"), ("full_sharded", "custom_sharded_layers")]
)
def test_files_of_several_gpus_ask_how_many(file: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"{what} is for several GPUs; say how many"):
        read(from_path(FOLDER / f"{file}.yaml", None, {}), 1)


def test_a_command_is_answered() -> None:
    words = ["tune", "run", "--nproc_per_node", "2", "full_dpo_distributed", "--config", str(FOLDER / "full_dpo.yaml")]
    fewer = check([*words, "batch_size=1"], "h100")
    assert fewer.reading.task == "DPO"
    assert fewer.estimate.peak_allocated_bytes < check(words, "h100").estimate.peak_allocated_bytes


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw_8bit"},
        {"loop": "trainer"},
        {"strategy": "zero3"},
        {"autocast": "bf16"},
        {"fsdp": {"version": 1}},
    ],
)
def test_jobs_that_torchtune_does_not_run(settings: dict[str, Any]) -> None:
    job = SHARED | {"fsdp": {"sync_each_batch": True}, "method": "lora", "loss": "sections"} | settings
    with pytest.raises(
        VramplanError, match=r"layers_of torchtune is modelled for|that torchtune shards was not compared"
    ):
        estimate("llama-3.2-1b", "h100", **job)


def test_models_that_torchtune_writes_otherwise() -> None:
    with pytest.raises(VramplanError, match="its gemma2 is not modelled"):
        estimate("gemma-2-2b", "h100", **SHARED | {"num_gpus": 1, "strategy": "ddp", "loss": "sections"})


def test_layers_of_adapters_hold_a_table_each() -> None:
    """lora_mistral_7b: 32,768 positions of 128 in fp32 in each of 32 layers (models/mistral/_component_builders.py)."""
    job = SHARED | {"num_gpus": 1, "strategy": "ddp", "loss": "sections", "method": "lora"}
    own, theirs = (
        estimate("mistral-7b-v0.1", "h100", **job | {"layers_of": name}) for name in ("torchtune", "transformers")
    )
    assert own.peak_allocated_bytes - theirs.peak_allocated_bytes == pytest.approx(32 * 16 * 2**20, rel=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lora_dpo_distributed --config dpo.yaml --batch_size 1", "write batch_size=1 behind"),
        ("lora_dpo_distributed --config dpo.yaml --model.lora_rank=8", "write model.lora_rank=8 behind"),
        ("--batch_size 1 lora_dpo_distributed --config dpo.yaml", "write batch_size=1 behind"),
        ("lora_dpo_distributed --config dpo.yaml --fix", "vramplan's own flags go before the --"),
        ("lora_dpo_distributed --config dpo.yaml --seq-len 512", "vramplan's own flags go before the --"),
        ("lora_dpo_distributed --config=dpo.yaml", "write --config dpo.yaml"),
    ],
)
def test_flags_at_which_torchtune_stops(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_words(["tune", "run", *words.split()], None, {})
