"""axolotl's rl: kto and grpo, which are TRL 1.9's trainers with settings of axolotl's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.axolotl_runs import GPU, recorded
from tests.recorded_runs import errors_of
from vramplan import check, estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
BASE: dict[str, Any] = {
    "base_model": "Qwen/Qwen2.5-0.5B",
    "adapter": "lora",
    "lora_r": 8,
    "lora_target_linear": "true",
    "sequence_len": 1024,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "bf16": "true",
}
KTO = {**BASE, "rl": "kto"}
GRPO = {
    **BASE,
    "rl": "grpo",
    "trl": "{max_completion_length: 256, num_generations: 8, reward_funcs: [rewards.is_right]}",
}


def verdict(folder: Any, settings: dict[str, Any], length: int | None = None, num_gpus: int = 1) -> Any:
    path = folder / "train.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    given = {} if length is None else {"sequence_length": length}
    return check(path, "h100", num_gpus=num_gpus, framework="axolotl", framework_version="0.19.0", **given)


def trl(text: str, **more: Any) -> dict[str, Any]:
    return {**GRPO, "trl": f"{{max_completion_length: 256, {text}}}", **more}


def test_kto_is_that_of_trl_1_9(tmp_path: Any) -> None:
    job = verdict(tmp_path, KTO).estimate.job
    assert (job.task, job.loss, job.sequence_length) == ("kto", "axolotl_log_probs", 1024)
    by_logits = estimate(KTO["base_model"], "h100", **{**job.model_dump(exclude_defaults=True), "device_map": None})
    assert (
        by_logits.peak_allocated_bytes
        > 1.5
        * estimate(
            KTO["base_model"], "h100", task="kto", loss="chunked", sequence_length=1024, micro_batch_size=4
        ).peak_allocated_bytes
    )


def test_grpo_reads_the_sections_trl_and_vllm(tmp_path: Any) -> None:
    job = verdict(tmp_path, GRPO, length=768).estimate.job
    assert (job.task, job.loss, job.prompt_length, job.num_generations) == ("grpo", "axolotl_log_probs", 512, 8)
    assert job.generate_with == "transformers"
    shared = trl("use_vllm: true, vllm_mode: colocate")
    job = verdict(tmp_path, shared, length=768).estimate.job
    assert (job.generate_with, job.vllm_share) == ("vllm", 0.9)
    job = verdict(tmp_path, {**shared, "vllm": "{gpu_memory_utilization: 0.4}"}, length=768).estimate.job
    assert job.vllm_share == 0.4
    job = verdict(tmp_path, trl("use_vllm: true"), length=768).estimate.job
    assert (job.generate_with, job.vllm_share) == ("vllm", 0.3)  # TRL's own defaults


def test_the_length_of_a_prompt_is_open(tmp_path: Any) -> None:
    assert len(verdict(tmp_path, GRPO).cases) > 1


SHARDED = {"deepspeed": "zero3.json", "gradient_checkpointing": "true", "flash_attention": "true"}
ZERO3 = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true}}'


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({**BASE, "rl": "dpo"}, "adapters_off"),
        ({**BASE, "rl": "dpo", "adapter": "", "lora_r": ""}, "model"),
        ({**KTO}, "adapters_off"),
    ],
    ids=["dpo lora", "dpo full", "kto lora"],
)
def test_preferences_under_zero_3_are_those_of_trl(settings: dict[str, Any], reference: str, tmp_path: Any) -> None:
    """axolotl hands TRL the adapters' settings, or a second model that it loaded in parts, and changes nothing else."""
    (tmp_path / "zero3.json").write_text(ZERO3)
    job = verdict(tmp_path, {**settings, **SHARDED}, num_gpus=4).estimate.job
    assert (job.strategy, job.num_gpus, job.loss) == ("zero3", 4, "axolotl_log_probs")
    assert (job.reference_source, job.dtype, job.autocast) == (reference, "bf16", "none")
    if job.method == "lora":
        assert (job.lora_dtype, job.reentrant) == ("bf16", True), "as TRL's own runs have it"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**GRPO, **SHARDED}, "is not read yet; nearest"),
        ({**KTO, **SHARDED, "adapter": "qlora", "load_in_4bit": "true"}, "four bits with KTO"),
    ],
    ids=["grpo", "qlora"],
)
def test_what_zero_3_is_not_modelled_with(settings: dict[str, Any], said: str, tmp_path: Any) -> None:
    (tmp_path / "zero3.json").write_text(ZERO3)
    with pytest.raises(VramplanError, match=said):
        verdict(tmp_path, settings, num_gpus=4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**KTO, "micro_batch_size": 1}, "stops at 1"),
        ({**KTO, "adapter": "", "lora_r": "", "flash_attention": "true"}, "reference in fp32"),
        ({**KTO, "rl_adapter_ref_model": "true"}, "rl_adapter_ref_model"),
        (trl("beta: 0.04", adapter="", lora_r="", flash_attention="true"), "loads a second model in fp32"),
        ({**GRPO, "rl_beta": 0.1, "adapter": "", "lora_r": "", "flash_attention": "true"}, "second model in fp32"),
        (trl("async_prefetch: true"), "async_prefetch"),
        (trl("use_liger_loss: true"), "use_liger_loss"),
        (trl("entropy_coef: 0.1"), "entropy"),
        (trl("reward_funcs: [org/reward-model, org/another]"), "one reward model is"),
        (trl("use_vllm: true, vllm_mode: colocate, vllm_enable_sleep_mode: true"), "PYTORCH_ALLOC_CONF"),
        ({**GRPO, "trl": "{num_generations: 8}"}, "max_completion_length is not set"),
        ({key: value for key, value in GRPO.items() if key != "trl"}, "without the section trl"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(settings: dict[str, Any], said: str, tmp_path: Any, monkeypatch: Any) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(VramplanError) as caught:
        verdict(tmp_path, settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def name_of(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in {"model": row["model"], **row["job"]}.items() if value)


@pytest.mark.parametrize("row", RECORDED[::4], ids=name_of)
def test_peaks_agree_with_its_kernels(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= 0.0001


@pytest.mark.full
def test_all_runs_agree_with_its_kernels() -> None:
    assert {row["job"]["task"] for row in RECORDED} == {"dpo", "kto", "orpo", "cpo", "simpo", "grpo"}
    assert not [name_of(row) for row in RECORDED if max(errors_of(row, GPU).values()) > 0.0001]


def test_its_kernel_is_of_its_tasks() -> None:
    with pytest.raises(VramplanError, match="is not modelled yet"):
        estimate("qwen2.5-0.5b", "h100", task="reward", loss="axolotl_log_probs")
    with pytest.raises(VramplanError, match="no meaning without"):
        estimate("qwen2.5-0.5b", "h100", loss="divided_in_place")
