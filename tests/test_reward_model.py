"""A reward model beside GRPO and RLOO: the tape against TRL's own trainers, what it adds, what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import spec_of
from tests.recorded_runs import errors_of
from tests.trl_rewards import recorded
from tests.trl_runs import GPU
from vramplan import check, estimate, suggest
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.planner.export import export

RECORDED = recorded()
WORST, MEDIAN = 0.001, 0.0001
MODEL = "qwen2.5-0.5b"
SETTINGS: dict[str, Any] = {"task": "grpo", "sequence_length": 512, "prompt_length": 128, "micro_batch_size": 8}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::6], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 25
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_its_weights_stay_all_the_time() -> None:
    alone = estimate(MODEL, "a100-80gb", **SETTINGS)
    beside = estimate(MODEL, "a100-80gb", reward_model="qwen3-0.6b", **SETTINGS)
    spec = spec_of("qwen3-0.6b")
    weights = 2 * (spec.num_parameters or 0) + 2 * spec.config["hidden_size"]  # with the head of one label
    for phase in ("loaded", "generation", "forward", "backward", "optimizer"):
        assert beside.phases[phase] - alone.phases[phase] == pytest.approx(weights, rel=0.001)


def test_all_completions_of_a_generation_are_scored_at_once() -> None:
    """Four micro-batches of a generation need four times the keys and values of one."""
    added = {}
    for steps in (1, 4):
        job = {**SETTINGS, "gradient_accumulation_steps": steps, "generate_with": "vllm_server"}
        found = estimate(MODEL, "a100-80gb", reward_model="llama-3.2-1b", **job)
        added[steps] = found.phases["reward"] - found.phases["optimizer"]
    assert added[4] == pytest.approx(4 * added[1], rel=0.1)


def test_a_reward_model_of_another_vocabulary_is_scored_by_its_own_tokenizer() -> None:
    found = estimate(MODEL, "a100-80gb", reward_model="smollm2-135m", **SETTINGS)
    assert found.phases["reward"] > 0
    assert any("SmolLM2-135M" in text for text in found.assumptions)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reward_model": "no-such-model-at-all"}, "reward_model=no-such-model-at-all"),
        ({"reward_model": "os:system"}, "give a Hub id"),
        ({"reward_model": "t5-small"}, "t5 is no causal language model"),
        ({"reward_model": MODEL, "task": None, "prompt_length": None}, "no meaning without task=grpo"),
        ({"reward_model": MODEL, "task": "dpo"}, "no meaning without task=grpo"),
        ({"reward_dtype": "fp32"}, "no meaning without reward_model"),
        ({"reward_model": "gpt2", "sequence_length": 4096}, "gpt2 has a table of 1024 positions"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate(MODEL, "a100-80gb", **{**SETTINGS, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


RECIPE = """model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
reward_model_name_or_path: Qwen/Qwen3-0.6B
use_peft: true
max_completion_length: 256
"""
SCRIPT = """import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification
from trl import GRPOConfig, GRPOTrainer

def short(completions, **_):
    return [-len(one) for one in completions]

rm = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen3-0.6B", num_labels=1, dtype=torch.float32)
args = GRPOConfig(output_dir="out", max_completion_length=256, bf16=True)
data = load_dataset("org/prompts", split="train")
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=REWARDS, args=args, train_dataset=data)
trainer.train()
"""


def read(tmp_path: Path, name: str, text: str, **options: Any) -> Job:
    path = tmp_path / name
    path.write_text(text)
    return check(path, "a100-80gb", seq_len=512, look_further=False, **options).estimate.job


def test_recipes_load_it_like_the_policy(tmp_path: Path) -> None:
    """TRL's script hands its dtype, float32 by default, to both (trl/scripts/grpo.py)."""
    job = read(tmp_path, "grpo.yaml", RECIPE)
    assert (job.reward_model, job.reward_dtype) == ("Qwen/Qwen3-0.6B", "fp32")
    job = read(tmp_path, "grpo.yaml", RECIPE + "dtype: bfloat16\n")
    assert (job.reward_model, job.reward_dtype) == ("Qwen/Qwen3-0.6B", "bf16")
    quantized = RECIPE + "dtype: bfloat16\nload_in_4bit: true\n"
    assert read(tmp_path, "grpo.yaml", quantized, framework_version="1.16.0").reward_model
    with pytest.raises(VramplanError, match=r"TRL 1\.6\.0 quantizes both"):
        read(tmp_path, "grpo.yaml", quantized, framework_version="1.6.0")


@pytest.mark.parametrize(
    ("rewards", "dtype"), [("rm", "fp32"), ("[short, rm]", "fp32"), ("'Qwen/Qwen3-0.6B'", "bf16"), ("[short]", None)]
)
def test_scripts_load_it_themselves(tmp_path: Path, rewards: str, dtype: str | None) -> None:
    job = read(tmp_path, "train.py", SCRIPT.replace("REWARDS", rewards))
    assert (job.reward_model, job.reward_dtype) == ("Qwen/Qwen3-0.6B" if dtype else None, dtype)


def test_several_reward_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VramplanError, match="several reward models are not modelled"):
        read(tmp_path, "train.py", SCRIPT.replace("REWARDS", "[rm, 'Qwen/Qwen3-0.6B']"))


def test_plans_are_written_with_it(tmp_path: Path) -> None:
    job = {name: value for name, value in SETTINGS.items() if name != "micro_batch_size"}
    found = suggest(MODEL, "rtx4090", 16, reward_model="smollm2-135m", **{**job, "generate_with": "vllm_server"})
    assert found.recommended is not None
    written = export("trl", MODEL, found.recommended.estimate.job, "rtx4090").text
    assert "reward_model_name_or_path: HuggingFaceTB/SmolLM2-135M" in written
