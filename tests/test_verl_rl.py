"""verl's reinforcement training as `check` reads it, and what it refuses, by the defaults of its sources (0.9.1)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from vramplan import check, estimate, fix
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.verl_rl import nearest_job
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import FUSED_KERNELS
from vramplan.planner.read_config import read

QWEN = "Qwen/Qwen2.5-0.5B"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL, REF = "actor_rollout_ref.model", "actor_rollout_ref.ref"
SAMPLES = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"
BATCH = (SAMPLES, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8")
FSDP = {
    "version": 1,
    "reshard_after_forward": True,
    "use_orig_params": False,
    "backward_prefetch": "pre",
    "reduce_dtype": "fp32",
    "sync_each_batch": True,
}
DEFAULTS: dict[str, Any] = {
    "task": "grpo",
    "loss": "log_probs",
    "loop": "plain",
    "optimizer": "adamw_torch",
    "attention": "flash",
    "checkpointing": "full",
    "prompt_length": 512,
    "num_generations": 1,
    "num_gpus": 8,
    "strategy": "fsdp",
    "fsdp": FSDP,
    "method": "full",
    "dtype": "fp32",
    "autocast": "bf16",
    "batches": "unpadded",
    "sequence_length": 1024,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "generate_with": "vllm_sleep",
    "vllm_share": 0.5,
    "vllm_tensor_parallel": 2,
    "verl": {
        "logits": "undivided",
        "scored_tokens": 8 * 1024,
        "entropy": False,
        "param_offload": False,
        "optimizer_offload": False,
        "layered_summon": False,
        "bucket_mib": 2048,
        "keeps_root": True,
    },
    "expandable_segments": True,
}


def line(*overrides: str) -> str:
    words = ("algorithm.adv_estimator=grpo", f"actor_rollout_ref.model.path={QWEN}", *overrides)
    return f"python3 -m verl.trainer.main_ppo {' '.join(words)}"


def nearest(*overrides: str) -> dict[str, Any]:
    return nearest_job(ConfigReader(from_line(line(*overrides), None, {}).source, "verl"))


def refusal(*overrides: str, version: str | None = None) -> str:
    with pytest.raises(UnsupportedError) as caught:
        read(from_line(line(*overrides), None, {}), 1, version)
    return str(caught.value)


def read_line(*overrides: str, version: str | None = None) -> ParsedConfig:
    found = from_line(line(*BATCH, *overrides), None, {})
    return read(found, 1, version)


def test_what_is_read_by_default() -> None:
    """256 prompts for an update on 8 GPUs, in micro-batches of 4: 8 steps."""
    parsed = read_line()
    assert (parsed.framework, parsed.version, parsed.task) == ("verl", "0.9.1 (newest known)", "GRPO")
    assert parsed.job == DEFAULTS
    estimate(QWEN, "h100", **parsed.job)  # raises for what cannot run


@pytest.mark.parametrize(
    ("overrides", "update"),
    [
        ((f"{ROLLOUT}.n=8",), {"num_generations": 8, "gradient_accumulation_steps": 64}),
        ((f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=16"), {"reference": "model"}),
        ((f"{ACTOR}.fsdp_config.model_dtype=bfloat16",), {"dtype": "bf16", "autocast": "none"}),
        ((f"{ACTOR}.fsdp_config.fsdp_size=4",), {"fsdp": {**FSDP, "replicas": 2}}),
        (
            (f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation=True",),
            {"fsdp": {**FSDP, "sync_each_batch": False}},
        ),
        ((f"{ROLLOUT}.free_cache_engine=False", f"{ROLLOUT}.max_model_len=4096"),
         {"generate_with": "vllm", "vllm_max_length": 4096}),
        ((f"{MODEL}.use_liger=True",), {"fused_kernels": FUSED_KERNELS}),
        (("trainer.nnodes=2",), {"num_gpus": 16, "gradient_accumulation_steps": 4}),
        ((f"{ROLLOUT}.mode=async", "data.train_batch_size=512", f"{ACTOR}.kl_loss_coef=0.01"), {}),
    ],
)  # fmt: skip
def test_settings(overrides: tuple[str, ...], update: dict[str, Any]) -> None:
    found = read_line(*overrides).job
    expected = {**DEFAULTS, **update, "verl": found["verl"]}
    assert found == expected


@pytest.mark.parametrize(
    ("overrides", "update"),
    [
        ((f"{ACTOR}.fsdp_config.param_offload=True", f"{ACTOR}.fsdp_config.optimizer_offload=True"),
         {"param_offload": True, "optimizer_offload": True}),
        ((f"{ROLLOUT}.temperature=0.7",), {"logits": "copied"}),
        ((f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=16"), {"scored_tokens": 16 * 1024}),
        ((f"{ROLLOUT}.layered_summon=True",), {"layered_summon": True}),
        ((f"{ACTOR}.entropy_coeff=0.001",), {"entropy": True}),
        ((f"{ACTOR}.calculate_entropy=True",), {"entropy": True}),
    ],
)  # fmt: skip
def test_settings_of_its_own(overrides: tuple[str, ...], update: dict[str, Any]) -> None:
    assert read_line(*overrides).job["verl"] == {**DEFAULTS["verl"], **update}


def test_adapters_have_the_dtype_of_the_base() -> None:
    lora = (f"{MODEL}.lora_rank=32", f"{MODEL}.target_modules=all-linear", f"{ACTOR}.fsdp_config.model_dtype=bf16")
    kl = (f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=8")
    job = read_line(*lora, *kl).job
    assert (job["method"], job["lora_rank"], job["lora_dtype"]) == ("lora", 32, "bf16")
    assert job["reference"] == "adapters_off"


@pytest.mark.parametrize(
    ("version", "logits", "reduces", "expandable", "longest"),
    [
        ("0.5.0", "in_place", True, False, 1024),
        ("0.7.1", "in_place", True, True, None),
        ("0.8.0", "in_place", True, True, None),
        ("0.9.0", "copied", False, True, None),
    ],
)
def test_versions(version: str, logits: str, reduces: bool, expandable: bool, longest: int | None) -> None:
    job = read_line(f"{MODEL}.use_remove_padding=True", version=version).job
    assert (job["verl"]["logits"], job["fsdp"]["sync_each_batch"]) == (logits, reduces)
    assert (job.get("expandable_segments", False), job.get("vllm_max_length")) == (expandable, longest)


def test_a_budget_of_tokens() -> None:
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=8192", f"{ROLLOUT}.n=8")
    parsed = read_line(*budget)
    job = parsed.job
    assert (job["batches"], job["sequence_length"], job["micro_batch_size"]) == ("packed", 8192, 1)
    assert job["gradient_accumulation_steps"] == 256 * 8 // 8 * 1024 // 8192
    assert job["verl"]["scored_tokens"] == 8192
    assert "up to 9,600 tokens" in next(note.text for note in parsed.notes if note.kind == "doubt")
    assert parsed.rows == "packed"
    estimate(QWEN, "h100", **job)


def test_changes_are_hydras() -> None:
    parsed = read_line()
    assert parsed.say({"micro_batch_size": 2, "gradient_accumulation_steps": 16, "vllm_share": 0.4}) == [
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=256",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((f"{ACTOR}.ppo_micro_batch_size_per_gpu=5",), "5 does not divide the 32 samples of a GPU"),
        ((f"{ACTOR}.ppo_mini_batch_size=4",), "fewer samples than 8 GPUs"),
        ((f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null",), "log_prob_micro_batch_size_per_gpu is not set"),
    ],
)
def test_batches_that_stop_verl(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_line(*overrides)


def test_the_nearest_defaults() -> None:
    """256 prompts for an update on 8 GPUs, in micro-batches of 4: 8 steps."""
    job = nearest(SAMPLES)
    assert (job["micro_batch_size"], job["gradient_accumulation_steps"], job["num_gpus"]) == (4, 8, 8)
    assert (job["sequence_length"], job["prompt_length"]) == (1024, 512)
    assert (job["dtype"], job["autocast"], job["checkpointing"], job["strategy"]) == ("fp32", "bf16", "full", "fsdp")
    assert (job["generate_with"], job["vllm_share"]) == ("vllm_sleep", 0.5)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((f"{ROLLOUT}.n=5", SAMPLES), {"gradient_accumulation_steps": 40, "num_generations": 5}),
        ((f"{ROLLOUT}.n=5", f"{ACTOR}.ppo_micro_batch_size=64"), {"micro_batch_size": 8, "num_generations": 5}),
        (
            (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=8000"),
            {"micro_batch_size": 7, "gradient_accumulation_steps": 6},
        ),
        ((SAMPLES, f"{ROLLOUT}.free_cache_engine=False"), {"generate_with": "vllm"}),
        ((SAMPLES, "actor_rollout_ref.model.lora_rank=32"), {"method": "lora", "lora_rank": 32}),
        (
            (SAMPLES, "trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1"),
            {"strategy": "ddp", "gradient_accumulation_steps": 64, "vllm_tensor_parallel": 1},
        ),
        (
            (SAMPLES, f"{ROLLOUT}.tensor_model_parallel_size=4", f"{ROLLOUT}.max_model_len=4096"),
            {"vllm_tensor_parallel": 4, "vllm_max_length": 4096},
        ),
    ],
)
def test_the_nearest_job(overrides: tuple[str, ...], expected: dict[str, Any]) -> None:
    job = nearest(*overrides)
    assert {name: job[name] for name in expected} == expected
    estimate(QWEN, "h100", **job, loss="standard")  # raises for what cannot run


def test_the_command_of_a_model_with_images_is_of_text_alone() -> None:
    """Images under FSDP are not modelled for TRL's trainer."""
    text = refusal(*BATCH, f"{MODEL}.path=Qwen/Qwen3.5-4B")
    assert "images of qwen3_5 were not compared with a run of verl's actor" in text
    before, _, command = text.partition("GRPOTrainer on text alone: ")
    assert command.endswith("--images 0 --loss standard"), before
    estimate("Qwen/Qwen3.5-4B", "h100", **nearest(*BATCH), images=0, loss="standard")


def test_a_budget_by_set_is_not_asked_about_again() -> None:
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ROLLOUT}.n=8")
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    found = from_line(line(*BATCH, *budget), None, {}).with_settings({key: "9600"})
    assert not any(note.kind == "doubt" and note.key == key for note in read(found, 1).notes)


def test_the_command_is_the_nearest_job() -> None:
    text = refusal(SAMPLES, f"{ROLLOUT}.n=5", f"{ROLLOUT}.gpu_memory_utilization=0.6", version="0.3")
    words = shlex.split(text.partition("GRPOTrainer: ")[2])
    assert words[:3] == ["vramplan", "estimate", QWEN]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert (given["--task"], given["--vllm-share"], given["--accumulation"]) == ("grpo", "0.6", "40")
    assert given["--vllm-tensor-parallel"] == "2"  # verl's default


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm.adv_estimator=gae", "critic.model.path is not set: verl loads ~/models/deepseek-llm-7b-chat"),
        ("critic.enable=True", "critic.model.path is not set"),
        ("reward.reward_model.enable=True", "reward.reward_model.enable: True is a reward model"),
        ("model_engine=megatron", "model_engine: megatron"),
        (f"{REF}.strategy=fsdp2", f"{REF}.strategy: fsdp2 is not modelled yet beside another"),
        (f"{ROLLOUT}.name=trtllm", "trtllm is not modelled yet; modelled: vllm, sglang"),
        (f"{ACTOR}.calculate_sum_pi_squared=True", f"{ACTOR}.calculate_sum_pi_squared: True"),
        (f"{MODEL}.enable_activation_offload=True", "enable_activation_offload: True"),
        (f"{ACTOR}.use_torch_compile=False", "use_torch_compile: False is not modelled yet; modelled: true"),
        (
            f"{MODEL}.use_fused_kernels=True {MODEL}.fused_kernel_options.impl_backend=liger",
            "liger is not modelled yet",
        ),
        ("trainer.v1.trainer_mode=separate_async", "trainer.v1.trainer_mode: separate_async"),
    ],
)
def test_what_is_left_out_is_named(override: str, named: str) -> None:
    assert named in refusal(SAMPLES, override, f"{ROLLOUT}.tensor_model_parallel_size=1")


def test_a_batch_that_stops_verl() -> None:
    with pytest.raises(ConfigError, match="ppo_micro_batch_size_per_gpu is not set"):
        read(from_line(line(), None, {}), 1)


def test_the_verdict_is_the_estimate_of_the_same_settings(tmp_path: Path) -> None:
    script = tmp_path / "grpo.sh"
    script.write_text(line(*BATCH), encoding="utf-8")
    verdict = check(script, "h100")
    assert verdict.estimate.device_total_bytes == estimate(QWEN, "h100", **DEFAULTS).device_total_bytes
    assert verdict.fits


def test_host_memory_makes_room_for_vllm(tmp_path: Path) -> None:
    """Adam's states of 3 B weights in fp32 on two GPUs, beside four fifths of each."""
    script = tmp_path / "grpo.sh"
    few = ("trainer.n_gpus_per_node=2", f"{ROLLOUT}.gpu_memory_utilization=0.75", f"{MODEL}.path=Qwen/Qwen2.5-3B")
    script.write_text(line(*BATCH, *few), encoding="utf-8")
    assert not check(script, "h100").fits
    advice = {name for effect in check(script, "h100").advice for name in effect.settings}
    assert f"{ACTOR}.fsdp_config.optimizer_offload=True" in advice


def test_a_share_that_is_too_large_is_changed(tmp_path: Path) -> None:
    script = tmp_path / "grpo.sh"
    script.write_text(line(*BATCH, f"{ROLLOUT}.gpu_memory_utilization=0.97"), encoding="utf-8")
    found = fix(script, "h100")
    assert [(change.key, change.before) for change in found.changes] == [(f"{ROLLOUT}.gpu_memory_utilization", "0.97")]
    assert 0.7 < float(found.changes[0].after) < 0.97


def test_gpus_that_copies_of_vllm_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="3 GPUs for each vLLM do not divide 8: verl stops"):
        read(from_line(line(SAMPLES, f"{ROLLOUT}.tensor_model_parallel_size=3"), None, {}), 1)


def test_a_budget_of_tokens_is_named() -> None:
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=9000")
    text = refusal(*budget, version="0.3")
    assert "ppo_max_token_len_per_gpu 9,000 is its token budget" in text


@pytest.mark.full
def test_a_change_that_is_enough_leaves_the_micro_batch(tmp_path: Path) -> None:
    """A smaller share of vLLM's, which decides, is all that is needed."""
    script = tmp_path / "grpo.sh"
    batch = (SAMPLES, BATCH[1], f"{ROLLOUT}.gpu_memory_utilization=0.95", f"{ACTOR}.ppo_mini_batch_size=32")
    script.write_text(line(*batch, f"{MODEL}.use_remove_padding=True"), encoding="utf-8")
    verdict = check(script, "rtx4090")
    shares = [effect for effect in verdict.advice if "vllm_share" in effect.update and effect.fits]
    assert not verdict.fits
    assert [(effect.micro_batch_size, effect.batch) for effect in shares] == [(4, ())]
