"""Frozen adapters of the reference beside those that train: runs of TRL's own trainers, and what they weigh."""

from __future__ import annotations

from statistics import median

import pytest

from tests.helpers import card_of, spec_of
from tests.recorded_runs import errors_of
from tests.trl_frozen_adapters import recorded
from tests.trl_runs import GPU
from vramplan import estimate
from vramplan.analytic.job_steps import JobSteps
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job

ROWS = recorded()
SETTINGS = {"task": "dpo", "lora_rank": 16, "sequence_length": 512, "micro_batch_size": 2}


def test_runs_of_trl_agree() -> None:
    errors = [error for row in ROWS[::4] for error in errors_of(row, GPU).values()]
    assert max(errors) < 0.0005
    assert median(errors) < 0.00005


@pytest.mark.full
def test_all_runs_of_trl_agree() -> None:
    assert {row["trl"] for row in ROWS} == {"1.16.0", "1.9.0", "1.0.0", "0.28.0", "ms-swift 4.6.0"}
    assert {row["job"]["task"] for row in ROWS} == {"dpo", "kto", "grpo", "rloo"}
    for row in ROWS:
        assert max(errors_of(row, GPU).values()) < 0.0005, row


@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_the_copy_is_fp32_whatever_the_adapters_are(quantize: str) -> None:
    """TRL casts the adapters of a quantized model to bf16, and not the copy (trl 1.16, dpo_trainer.py)."""

    def loaded(reference: str) -> tuple[int, int]:
        found = estimate("qwen2.5-0.5b", "a100-80gb", quantize=quantize, reference=reference, **SETTINGS)
        return found.phases["loaded"], found.num_trainable_parameters

    (plain, parameters), (beside, same) = loaded("adapters_off"), loaded("frozen_adapters")
    assert same == parameters
    assert abs((beside - plain) / (4 * parameters) - 1) < 0.01


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "full", "lora_rank": None}, "there are no adapters"),
        ({"method": "dora"}, "was not compared with a run"),
        ({"modules_to_save": ("lm_head",)}, "was not compared with a run"),
        ({"strategy": "zero3", "num_gpus": 2}, "was not compared with a run of TRL; use"),
        ({"loss": "log_softmax"}, "it is of TRL's and ms-swift's trainers"),
        ({"loss": "liger"}, "it is of TRL's and ms-swift's trainers"),
    ],
)
def test_what_is_refused(settings: dict[str, object], expected: str) -> None:
    given = {**SETTINGS, "reference": "frozen_adapters", **settings}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(VramplanError) as error:
        estimate("qwen2.5-0.5b", "a100-80gb", **given)
    assert expected in str(error.value)


def test_only_those_that_train_have_gradients_and_states() -> None:
    """And the reference's weights are named as its own."""
    timelines = [
        JobSteps(spec_of("qwen2.5-0.5b"), Job(**SETTINGS, reference=reference), card_of(GPU)).timelines(2, 1)[0]
        for reference in ("adapters_off", "frozen_adapters")
    ]
    peaks = [timeline.phase_peaks(timeline.live_bytes()) for timeline in timelines]
    added = peaks[1]["loaded"] - peaks[0]["loaded"]
    assert peaks[1]["optimizer"] - peaks[0]["optimizer"] == pytest.approx(added, rel=0.001)
