"""verl's reinforcement training: what `check` names of it, against the defaults of its sources (0.9.1)."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from vramplan import estimate
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.readers.verl_rl import nearest_job
from vramplan.frameworks.settings import ConfigReader
from vramplan.planner.read_config import read

QWEN = "Qwen/Qwen2.5-0.5B"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SAMPLES = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"


def line(*overrides: str) -> str:
    words = ("algorithm.adv_estimator=grpo", f"actor_rollout_ref.model.path={QWEN}", *overrides)
    return f"python3 -m verl.trainer.main_ppo {' '.join(words)}"


def nearest(*overrides: str) -> dict[str, Any]:
    return nearest_job(ConfigReader(from_line(line(*overrides), None, {}).source, "verl"))


def refusal(*overrides: str) -> str:
    with pytest.raises(UnsupportedError) as caught:
        read(from_line(line(*overrides), None, {}), 1)
    return str(caught.value)


def test_the_defaults() -> None:
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


def test_the_command_is_the_nearest_job() -> None:
    text = refusal(SAMPLES, f"{ROLLOUT}.n=5", f"{ROLLOUT}.gpu_memory_utilization=0.6")
    words = shlex.split(text.partition("GRPOTrainer: ")[2])
    assert words[:3] == ["vramplan", "estimate", QWEN]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert (given["--task"], given["--vllm-share"], given["--accumulation"]) == ("grpo", "0.6", "40")
    assert given["--vllm-tensor-parallel"] == "2"  # verl's default


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm.adv_estimator=gae", "PPO's critic"),
        ("critic.enable=True", "critic.enable: PPO's critic"),
        ("reward.reward_model.enable=True", "reward.reward_model.enable: True is a reward model"),
        ("model_engine=megatron", "model_engine: megatron"),
        (f"{ACTOR}.strategy=fsdp2", f"{ACTOR}.strategy: fsdp2"),
        (f"{ROLLOUT}.name=sglang", "sglang is not modelled yet (the nearest estimate has vLLM)"),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2", f"{ACTOR}.ulysses_sequence_parallel_size: 2"),
        (f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.entropy_coeff: 0.001"),
        (f"{ACTOR}.fsdp_config.param_offload=True", "in host memory while vLLM generates"),
    ],
)
def test_what_is_left_out_is_named(override: str, named: str) -> None:
    assert named in refusal(SAMPLES, override)
    assert named not in refusal(SAMPLES)


def test_a_batch_that_stops_verl() -> None:
    with pytest.raises(ConfigError, match="ppo_micro_batch_size_per_gpu is not set"):
        read(from_line(line(), None, {}), 1)


def test_gpus_that_copies_of_vllm_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="3 GPUs for each vLLM do not divide 8: verl stops"):
        read(from_line(line(SAMPLES, f"{ROLLOUT}.tensor_model_parallel_size=3"), None, {}), 1)


def test_a_budget_of_tokens_is_named() -> None:
    text = refusal(f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=9000")
    assert "ppo_max_token_len_per_gpu 9,000 is its token budget" in text
