"""TRL's ORPO, CPO and SimPO under ZeRO and FSDP against the estimates (tests/trl_odds_sharing_runs.jsonl)."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.trl_odds_sharing import recorded
from tests.trl_sharing import GPU
from vramplan import estimate
from vramplan.errors import UnsupportedError

RECORDED = recorded()
PHASES = ("forward", "backward", "optimizer")
WORST, MEDIAN = 0.003, 0.00001


def errors_of(row: dict[str, Any]) -> list[float]:
    peaks = estimated_peaks(row, GPU)
    return [abs(peaks[phase] / row["peaks"][phase] - 1) for phase in PHASES]


@pytest.mark.parametrize("row", RECORDED[::6], ids=lambda row: f"{row['job']['task']} {row['job']['strategy']}")
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row)) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 18
    assert {row["job"]["strategy"] for row in RECORDED} == {"zero1", "zero2", "zero3", "fsdp"}
    errors = [error for row in RECORDED for error in errors_of(row)]
    assert max(errors) <= WORST
    assert median(errors) <= MEDIAN


@pytest.mark.parametrize("task", ["orpo", "cpo", "simpo"])
def test_a_loss_without_reference_needs_less_than_one_with(task: str) -> None:
    settings: dict[str, Any] = {"num_gpus": 2, "strategy": "zero3", "method": "full", "sequence_length": 512}
    free = estimate("llama-3.2-1b", "h100", task=task, **settings)
    referred = estimate("llama-3.2-1b", "h100", task="dpo", **settings)
    assert free.phases["loaded"] < referred.phases["loaded"]


def test_the_kernel_of_log_probabilities_keeps_no_probabilities() -> None:
    """Since TRL 1.14: before, bf16 logits had their log-softmax, a row at a time, kept for backward."""
    settings: dict[str, Any] = {"task": "orpo", "autocast": "none", "sequence_length": 512, "micro_batch_size": 2}
    newer, older = (
        estimate("llama-3.2-1b", "h100", loss=loss, **settings).phases["forward"]
        for loss in ("fused_log_probs", "standard")
    )
    rows_of_logits = 2 * 511 * 128256 * 2  # the log-softmax of all rows, less what the cross-entropy has had
    assert older - newer == pytest.approx(rows_of_logits, rel=0.01)


@pytest.mark.parametrize("settings", [{"strategy": "zero0"}, {"offload": "all", "strategy": "zero3"}])
def test_what_was_not_compared_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="task="):
        estimate("llama-3.2-1b", "h100", num_gpus=2, task="orpo", **settings)
