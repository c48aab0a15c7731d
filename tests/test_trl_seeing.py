"""Preference training and GRPO of vision-language models, compared with TRL's own trainers."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import errors_of
from tests.trl_runs import GPU
from tests.trl_seeing_runs import recorded

RECORDED = recorded()
WORST, MEDIAN = 0.002, 0.00002
"""Largest relative error of a phase's peak, and the median over all phases of all runs."""


def name_of(row: dict[str, Any]) -> str:
    job = " ".join(f"{name}={value}" for name, value in row["job"].items() if name != "sequence_length")
    return f"{row['trl']} {row['seeing']} {job}"


@pytest.mark.parametrize("row", RECORDED[::9], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 90
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN
