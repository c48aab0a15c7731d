"""PPO: the tape against LLaMA-Factory's own loop, how its recipes are read, what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import cli, spec_of
from tests.llamafactory_ppo import recorded
from tests.recorded_runs import estimated_peaks
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.0005, 0.0001
SETTINGS: dict[str, Any] = {"task": "ppo", "sequence_length": 512, "prompt_length": 128, "micro_batch_size": 2}
MODEL = "qwen2.5-0.5b"
RECIPE = """model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: ppo
template: qwen
finetuning_type: lora
cutoff_len: 512
max_new_tokens: 128
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""
ADAPTERS = "reward_model: out/rm\n"
SERVER = "reward_model: http://localhost:8000\nreward_model_type: api\n"


def errors_of(row: dict[str, Any]) -> list[float]:
    """The relative error of each phase's peak; a run takes completions from elsewhere."""
    peaks = estimated_peaks(row, GPU)
    assert peaks.keys() - {"generation"} == row["peaks"].keys()
    return [abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()]


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::5], ids=name_of)
def test_peaks_agree_with_llamafactory(row: dict[str, Any]) -> None:
    assert max(errors_of(row)) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_llamafactory() -> None:
    assert len(RECORDED) >= 22
    errors = [errors_of(row) for row in RECORDED]
    assert max(max(each) for each in errors) <= WORST
    assert median(error for each in errors for error in each) <= MEDIAN


def test_whole_logits_are_held_in_fp32_several_times() -> None:
    """Joined, as a log-softmax, and in its backward with the gradients: at least four of (2, 512, vocabulary) fp32."""
    found = estimate(MODEL, "a100-80gb", **SETTINGS)
    one = 2 * 511 * 151_936 * 4
    assert found.phases["backward"] - found.phases["loaded"] > 4 * one


def test_adapters_that_score_are_a_second_set() -> None:
    server, adapters = (estimate(MODEL, "a100-80gb", reward_adapters=scores, **SETTINGS) for scores in (False, True))
    added = adapters.phases["loaded"] - server.phases["loaded"]
    assert added == pytest.approx(4 * server.num_trainable_parameters, rel=0.01)
    assert "reward" in adapters.phases
    assert "reward" not in server.phases


@pytest.mark.parametrize(("rewards", "adapters"), [(ADAPTERS, True), (SERVER, False)])
def test_recipes_are_read(tmp_path: Path, rewards: str, adapters: bool) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(RECIPE + rewards)
    job = check(path, "rtx4090", look_further=False).estimate.job
    assert (job.task, job.reward_adapters, job.loss) == ("ppo", adapters, "standard")
    assert (job.prompt_length, job.sequence_length) == (512, 640)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "stage ppo needs a reward_model"),
        ("reward_model: smollm2-135m\nreward_model_type: full\n", "give one with the same tokenizer"),
        (SERVER + "reward_model_quantization_bit: 4\n", "quantizes the reward model"),
        (ADAPTERS + "val_size: 0.1\n", "stops at a data set to evaluate"),
        (ADAPTERS + "enable_liger_kernel: true\n", "enable_liger_kernel"),
        (ADAPTERS + "pure_bf16: true\n", "fp16 autocast"),
        (ADAPTERS + "deepspeed: ds_z3.json\n", "ds_z3.json"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, more: str, said: str) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text((RECIPE.replace("bf16: true\n", "") if "pure_bf16" in more else RECIPE) + more)
    with pytest.raises(VramplanError) as caught:
        check(path, "rtx4090")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_reward_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(RECIPE + "reward_model: Qwen/Qwen3-0.6B\nreward_model_type: full\n")
    found = check(path, "rtx4090").estimate
    assert (found.job.reward_model, found.job.reward_dtype, found.job.reward_adapters) == (
        "Qwen/Qwen3-0.6B",
        "bf16",
        False,
    )
    path.write_text(RECIPE + SERVER)
    weights = 2 * (spec_of("qwen3-0.6b").num_parameters or 0)
    assert found.phases["loaded"] - check(path, "rtx4090").estimate.phases["loaded"] == pytest.approx(weights, rel=0.01)


def test_trl_names_the_nearest_estimate(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from trl import PPOTrainer\n\nPPOTrainer(model=None).train()\n")
    with pytest.raises(
        VramplanError, match=r"nearest, the same trainer as LLaMA-Factory runs it.*--task ppo --reward-model MODEL"
    ):
        check(path, "rtx4090")
    done = cli("check", "--gpu", "rtx4090", "--", "trl", "ppo", "--model_name_or_path", "EleutherAI/pythia-1b")
    assert done.returncode == 2
    assert "--value-model MODEL" in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt_length": None}, "needs the tokens of the prompt"),
        ({"prompt_length": 512}, "less than"),
        ({"autocast": "none"}, "use autocast=bf16"),
        ({"loss": "liger"}, "use loss=standard"),
        ({"generate_with": "vllm"}, "generate_with"),
        ({"strategy": "zero2", "num_gpus": 2}, "use strategy=ddp"),
        ({"method": "full", "reward_adapters": True}, "no meaning without"),
        ({"task": "grpo", "num_generations": 2, "reward_adapters": True}, "no meaning without"),
        ({"reward_model": MODEL, "reward_adapters": True}, "one of them scores"),
        ({"reward_model": "smollm2-135m"}, "has 49,152 tokens, and the policy 151,936"),
        ({"reference": "none"}, "is not modelled"),
        ({"batches": "packed"}, "use loop=trainer"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate(MODEL, "a100-80gb", **{**SETTINGS, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
