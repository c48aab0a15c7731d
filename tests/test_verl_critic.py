"""The critic of verl's PPO as `check` reads it, by the defaults of its sources (0.4 to 0.9.1)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from vramplan import check, fix
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.planner.read_config import read

QWEN = "Qwen/Qwen2.5-0.5B"
PPO = (
    "algorithm.adv_estimator=gae", f"actor_rollout_ref.model.path={QWEN}", f"critic.model.path={QWEN}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
)  # fmt: skip
OLD = ("actor_rollout_ref.model.use_remove_padding=True", "critic.ppo_micro_batch_size_per_gpu=8")
SAMPLES = {
    "model": None,
    "dtype": "fp32",
    "checkpointing": "full",
    "replicas": 1,
    "param_offload": False,
    "optimizer_offload": False,
    "batches": "unpadded",
    "sequence_length": 1024,
    "micro_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "scored_tokens": 8 * 1024,
}


def parsed(*overrides: str, version: str | None = None) -> ParsedConfig:
    line = f"python3 -m verl.trainer.main_ppo {shlex.join((*PPO, *overrides))}"
    return read(from_line(line, None, {}), 1, version)


def critic(*overrides: str, version: str | None = None) -> Any:
    return parsed(*overrides, version=version).job["verl"]["critic"]


@pytest.mark.parametrize(
    ("overrides", "update"),
    [
        (("critic.model.use_remove_padding=True",), {}),
        ((), {"batches": "padded"}),
        (("critic.model.use_remove_padding=True", "critic.forward_micro_batch_size_per_gpu=16"),
         {"scored_tokens": 16 * 1024}),
        (("critic.model.use_remove_padding=True", "critic.ppo_mini_batch_size=512"),
         {"gradient_accumulation_steps": 8}),
        (("critic.model.use_remove_padding=True", "critic.model.fsdp_config.param_offload=True"),
         {"param_offload": True}),
        (("critic.model.use_remove_padding=True", "critic.model.path=Qwen/Qwen2.5-1.5B"),
         {"model": "Qwen/Qwen2.5-1.5B"}),
        (("critic.model.use_remove_padding=True", "critic.model.fsdp_config.model_dtype=bf16",
          "critic.model.fsdp_config.fsdp_size=4"), {"dtype": "bf16", "replicas": 2}),
    ],
)  # fmt: skip
def test_samples(overrides: tuple[str, ...], update: dict[str, Any]) -> None:
    """256 prompts for an update on 8 GPUs, in micro-batches of 8; padded unless it is told otherwise."""
    assert critic(*OLD, *overrides, version="0.7.1") == {**SAMPLES, **update}


def test_a_budget_of_tokens() -> None:
    dynamic = (
        *OLD, "critic.model.use_remove_padding=True", "critic.use_dynamic_bsz=True",
        "critic.ppo_max_token_len_per_gpu=8192", "critic.forward_max_token_len_per_gpu=16384",
    )  # fmt: skip
    found = critic(*dynamic, version="0.7.1")
    assert (found["batches"], found["sequence_length"], found["gradient_accumulation_steps"]) == ("packed", 8192, 4)
    assert found["scored_tokens"] == 16384


def test_samples_are_not_counted_from_0_8_on() -> None:
    """Nobody hands ``ppo_micro_batch_size_per_gpu`` to the critic's engine, whose default is a budget of tokens."""
    found = parsed("critic.ppo_micro_batch_size_per_gpu=2", "critic.fsdp.optimizer_offload=True")
    job = found.job["verl"]["critic"]
    assert (job["batches"], job["sequence_length"], job["scored_tokens"]) == ("packed", 32768, 32768)
    assert (job["gradient_accumulation_steps"], job["optimizer_offload"]) == (1, True)
    assert any("is not used from verl 0.8 on" in note.text for note in found.notes)
    assert found.task == "PPO"


def test_keys_say_which_verl_they_are_for() -> None:
    found = parsed(*OLD, "critic.model.fsdp_config.param_offload=False")
    assert found.version == "0.7.1 (the newest with critic.model.fsdp_config)"


def test_a_key_of_the_first_verl() -> None:
    """Its rows are padded unless it is told otherwise, logits divided in place, and entropies always in the loss."""
    found = parsed(*OLD, "actor_rollout_ref.actor.fsdp_config.grad_offload=False")
    assert found.version == "0.4 (the oldest known)"
    assert (found.job["verl"]["logits"], found.job["verl"]["entropy"]) == ("in_place", True)
    assert any("is of verl before 0.4" in note.text for note in found.notes)


@pytest.mark.parametrize(
    ("overrides", "version", "said"),
    [
        (("critic.strategy=megatron",), None, "critic.strategy: megatron"),
        (("critic.model.lora_rank=8",), None, "critic.model.lora_rank: 8"),
        (("critic.model.use_remove_padding=False",), None, "critic.model.use_remove_padding is off"),
        ((*OLD, "critic.use_dynamic_bsz=True"), "0.7.1", "critic.model.use_remove_padding is off"),
    ],
)
def test_what_is_left_out_is_named(overrides: tuple[str, ...], version: str | None, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        parsed(*overrides, version=version)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (OLD[:1], "critic.ppo_micro_batch_size_per_gpu is not set: verl stops"),
        ((OLD[0], "critic.ppo_micro_batch_size_per_gpu=5"), "5 does not divide the 32 samples"),
    ],
)
def test_batches_that_stop_verl(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(*overrides, version="0.7.1")


@pytest.mark.full
def test_host_memory_is_among_what_would_help(tmp_path: Path) -> None:
    """Weights and states of actor and critic, an eighth of 32 bytes a parameter."""
    script = tmp_path / "ppo.sh"
    large = ("actor_rollout_ref.model.path=Qwen/Qwen2.5-14B", "critic.model.path=Qwen/Qwen2.5-14B")
    script.write_text(f"python3 -m verl.trainer.main_ppo {shlex.join((*PPO, *large))}", encoding="utf-8")
    verdict = check(script, "a100-80gb-sxm")
    assert not verdict.fits
    assert any("critic.fsdp.param_offload=True" in effect.settings for effect in verdict.advice)


@pytest.mark.full
def test_fix_scores_fewer_samples_at_a_time(tmp_path: Path) -> None:
    """64 completions of 4,096 tokens have 80 GB of logits; 32 fit."""
    script = tmp_path / "grpo.sh"
    words = (
        "algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=Qwen/Qwen2.5-3B", "data.max_prompt_length=1024",
        "data.max_response_length=3072", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64",
    )  # fmt: skip
    script.write_text(f"python3 -m verl.trainer.main_ppo {shlex.join(words)}", encoding="utf-8")
    changes = fix(script, "a100-80gb-sxm").changes
    key = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    assert [(change.key, change.before, change.after) for change in changes] == [(key, "64", "32")]


def test_a_budget_that_0_9_1_does_not_use() -> None:
    """What the fullest micro-batch may hold is asked for by the key that has an effect."""
    found = parsed("critic.ppo_max_token_len_per_gpu=8192", "actor_rollout_ref.rollout.n=16")
    kinds = {note.key: note.kind for note in found.notes if note.key.startswith("critic.")}
    assert kinds["critic.ppo_max_token_len_per_gpu"] == "warning"
    assert kinds["critic.ppo_infer_max_token_len_per_gpu"] == "doubt"
    assert found.job["verl"]["critic"]["sequence_length"] == 32768
    older = parsed("critic.ppo_max_token_len_per_gpu=8192", "actor_rollout_ref.rollout.n=16", version="0.8.0")
    assert older.job["verl"]["critic"]["sequence_length"] == 8192
    assert not any(note.kind == "warning" and note.key.startswith("critic.ppo") for note in older.notes)
