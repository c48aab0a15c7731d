"""PPO with a value model: the tape against TRL's own trainer, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import cli, spec_of
from tests.recorded_runs import estimated_peaks
from tests.trl_ppo import recorded
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.analytic.rollout.ppo_samples import fields_of_samples, samples_bytes
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.0005
MODEL = "qwen2.5-0.5b"
SETTINGS: dict[str, Any] = {
    "task": "ppo", "value_model": MODEL, "reward_model": MODEL, "sequence_length": 256, "prompt_length": 128,
    "micro_batch_size": 2,
}  # fmt: skip


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak; a run has the scores of a generation, and not its forwards."""
    peaks, found = estimated_peaks(row, GPU), row["peaks"]
    assert peaks.keys() == found.keys()
    assert 0.999 * found["generation"] <= peaks["generation"] <= 1.02 * found["generation"]
    return {phase: abs(peaks[phase] / size - 1) for phase, size in found.items() if phase != "generation"}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::9], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 25
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_all_of_the_value_model_trains_beside_adapters() -> None:
    found = estimate(MODEL, "a100-80gb", **SETTINGS)
    whole = spec_of(MODEL).num_parameters or 0
    assert found.num_trainable_parameters == pytest.approx(whole, rel=0.02)
    assert found.num_parameters == whole


def test_samples_for_the_log_need_what_a_generation_of_as_many_does() -> None:
    """Training on 32 completions generates 32 as well, beside the scores of 32 before in place of those of 2."""
    few, many = (estimate(MODEL, "h100", gradient_accumulation_steps=steps, **SETTINGS) for steps in (1, 16))
    samples = estimate(MODEL, "h100", **{**SETTINGS, **fields_of_samples(32)})
    completion, vocabulary = 128, 151_936
    expected = many.phases["generation"] - 4 * 30 * completion * vocabulary
    assert samples_bytes(spec_of(MODEL), few, samples) == pytest.approx(expected, rel=1e-3)


def test_rows_of_padding_may_differ() -> None:
    """Qwen2.5 has 152,064 rows from 7B on and 151,936 below, of 151,665 tokens."""
    smaller = {
        **SETTINGS,
        "num_gpus": 8,
        "strategy": "zero3",
        "value_model": "qwen2.5-3b",
        "reward_model": "qwen2.5-3b",
    }
    notes = estimate("qwen2.5-7b", "h100", **smaller).notes
    padding = "has 151,936 tokens, and the policy 152,064: taken for padding behind one tokenizer's tokens"
    assert sum(padding in note for note in notes) == 2


def test_scores_of_all_completions_stay_until_the_next() -> None:
    one, two = (estimate(MODEL, "a100-80gb", gradient_accumulation_steps=steps, **SETTINGS) for steps in (2, 4))
    scores = 2 * 2 * 128 * 151_936 * 4
    for phase in ("backward", "reward"):
        assert two.phases[phase] - one.phases[phase] >= 0.95 * scores
    assert two.phases["generation"] - one.phases["generation"] >= 2.9 * scores  # the last ones, in parts, joined


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "grpo", "num_generations": 2}, "has no meaning without task=ppo"),
        ({"reward_model": None}, "needs a model that scores"),
        ({"value_model": None, "rollout_batch_size": 4, "autocast": "bf16"}, "has no meaning without value_model"),
        ({"checkpointing": "full"}, "never switches it on"),
        ({"quantize": "nf4"}, "use quantize=none"),
        ({"num_gpus": 2}, "asks DistributedDataParallel for the policy"),
        ({"reference": "precomputed"}, "computes the reference's log-probabilities"),
        ({"reward_adapters": True, "reward_model": None}, "they are LLaMA-Factory's"),
        ({"value_model": "smollm2-135m"}, "has 49,152 tokens, and the policy 151,936"),
        ({"value_model": "Qwen/Qwen2.5-VL-3B-Instruct"}, "are not modelled"),
        ({"value_model": "./nowhere.json"}, "no such file or folder"),
        ({"strategy": "fsdp", "num_gpus": 2, "reference": "model"}, "use strategy=zero3"),
        ({"strategy": "zero3", "num_gpus": 2, "offload": "all"}, "use strategy=zero3 offload=none"),
        ({"prompt_length": None}, "needs the tokens of the prompt"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate(MODEL, "a100-80gb", **{**SETTINGS, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DistillationTrainer", "--task gkd --loss chunked --divergence reverse_kl --teacher MODEL"),
        ("OnlineDPOTrainer", "--task grpo --num-generations 2 --reference model --loss standard"),
    ],
)
def test_trainers_that_are_not_read_name_the_nearest_estimate(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"from trl import {name}\n\n{name}(model='Qwen/Qwen3-0.6B').train()\n")
    with pytest.raises(VramplanError) as caught:
        check(path, "rtx4090")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_on_the_command_line() -> None:
    line = ["estimate", MODEL, "--gpu", "h100", "--task", "ppo", "--seq-len", "256", "--prompt-len", "128", "-v"]
    run = cli(*line, "--value-model", MODEL, "--reward-model", MODEL, "--rollout-batch-size", "4")
    assert run.returncode == 0, run.stderr
    assert "PPO as TRL up to 1.12 runs it" in " ".join(run.stdout.split())


def test_a_prompt_as_long_as_its_sample_needs_a_shorter_one() -> None:
    with pytest.raises(VramplanError, match="prompt_length=N below that"):
        estimate(MODEL, "h100", **{**SETTINGS, "prompt_length": 256})
