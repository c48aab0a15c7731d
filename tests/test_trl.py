"""Preference training on the tape, compared with TRL's own trainers (tests/trl_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.helpers import spec_of
from tests.recorded_runs import errors_of
from tests.trl_runs import GPU, recorded
from vramplan import estimate, suggest
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.00001
"""Largest relative error of a phase's peak, and the median over all phases of all runs."""


def name_of(row: dict[str, Any]) -> str:
    job = " ".join(f"{name}={value}" for name, value in row["job"].items() if name not in ("sequence_length",))
    options = " ".join(f"{name}={value}" for name, value in row["options"].items())
    return f"{row['trl']} {row['model']} {job} {options}".strip()


@pytest.mark.parametrize("row", RECORDED[::12], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 150
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "kto", "loss": "liger"}, "loss=liger with task=kto is not modelled yet"),
        ({"task": "dpo", "loss": "liger", "reference": "precomputed"}, "stops at both"),
        ({"task": "dpo", "sequence_length": 512, "prompt_length": 512}, "leaves no token"),
        ({"task": "orpo", "reference": "model"}, "no meaning"),
        ({"task": "dpo", "method": "full", "reference": "adapters_off"}, "there are no adapters"),
        ({"task": "kto", "batches": "packed"}, "packs no"),
        ({"task": "dpo", "loop": "plain"}, "use loop=trainer"),
        ({"task": "reward", "loss": "two_forwards", "strategy": "zero3", "num_gpus": 2}, "use strategy=zero2"),
        ({"task": "dpo", "lengths": (128, 256)}, "longest"),
        ({"prompt_length": 100}, "no meaning"),
        ({"task": "dbo"}, "task"),
        ({"task": "SFT"}, "leave it out"),
        ({"task": "minillm"}, "nearest is task=gkd, TRL's GKDTrainer, with its teacher"),
        ({"task": "ppo"}, "needs the tokens of the prompt"),
        ({"task": "rloo", "micro_batch_size": 2}, "needs the tokens of the prompt"),
        ({"task": "rloo", "prompt_length": 64}, "does not divide the 1 completions"),
        ({"task": "IPO", "prompt_length": 0}, "at least one token"),
        ({"task": "kto", "micro_batch_size": 1}, "micro_batch_size=2 or more"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate("llama-3.2-1b", "h100", **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [("bert-base-uncased", "no causal"), ("qwen2-vl-2b-instruct", "text alone"), ("granite-3.1-2b-instruct", "has no")],
)
def test_a_model_that_the_task_is_not_modelled_for(model: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        estimate(model, "h100", task="reward")


def test_where_the_reference_comes_from_decides_memory() -> None:
    def peak(**settings: Any) -> Any:
        return estimate("llama-3.2-1b", "h100", task="dpo", sequence_length=512, **settings)

    second, before = peak(method="full"), peak(method="full", reference="precomputed")
    weights = 2 * spec_of("llama-3.2-1b").num_parameters  # type: ignore[operator]
    assert second.peak_allocated_bytes - before.peak_allocated_bytes == pytest.approx(weights, rel=0.001)
    assert "reference" in second.phases
    assert "reference" not in before.phases
    assert peak().peak_allocated_bytes < before.peak_allocated_bytes
    assert any("without adapters as reference" in text for text in peak().assumptions)


def test_only_batches_that_the_trainer_takes_are_planned() -> None:
    plans = suggest("llama-3.2-1b", "h100", 4, task="kto", advice=False).plans
    assert sorted(plan.micro_batch_size for plan in plans) == [2, 4]
    grpo = suggest("llama-3.2-1b", "h100", 32, task="grpo", prompt_length=512, sequence_length=1024, advice=False)
    assert grpo.max_micro_batch_size % 8 == 0


def test_a_value_head_keeps_all_logits_in_fp32() -> None:
    def forward(loss: str, **settings: Any) -> int:
        job = {"task": "reward", "sequence_length": 1024, "micro_batch_size": 4, "loss": loss, **settings}
        return estimate("llama-3.2-1b", "h100", **job).phases["forward"]

    logits = 4 * 2 * 4 * 1024 * spec_of("llama-3.2-1b").config["vocab_size"]
    assert 2 * logits < forward("value_head") - forward("standard") < 3 * logits  # log-probabilities, an fp32 copy
    with pytest.raises(VramplanError, match="DDP stops"):
        forward("value_head", method="full", num_gpus=2)
    with pytest.raises(VramplanError, match="strategy=zero2"):
        forward("value_head", strategy="zero3", num_gpus=2, method="full")
