"""The analytic estimate against some 3,700 traced ones: real classes, PEFT and optimizers on fake tensors.

By default a sample: of each family and setting one case of six. ``python -m pytest -m full`` takes every case.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tests import matrix
from tests.matrix_cases import MIXTURES, OTHERS, SEEING, Case, all_cases

ROWS = matrix.rows_by_name()
WORST = {"tensors": 0.002, "allocated": 0.016, "reserved": 0.12, "median": 5e-4, "flops": 1e-3}
"""Largest errors: of the live tensors at the peak; of any phase's peak as torch counts it (ends of blocks included, up
to 1 MiB each, which depend on the order); of what the allocator reserves (a large block without a place moves it);
the median of the second; of the operations counted."""
WORST_SEEING = {"tensors": 0.01, "allocated": 0.02, "reserved": 0.15, "median": 2e-3, "flops": 0.015}
"""The same if there are images."""
MEDIAN_OF_FEW = 3e-3
"""The same median in families of few cases, in whose middle the ends of blocks already count."""
FEW = {**OTHERS, **MIXTURES}
EVERY = 6
MIXING = ("liger", "cut", "chunked")
"""Losses that mix dtypes as no traced operation can."""


@cache
def sample() -> dict[str, list[Case]]:
    """One case of six by family, of each setting at least one; the rarer ones and families of few cases whole."""
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in all_cases():
        whole = case.setting == "rarer" or case.family in FEW
        groups[case.family, case.name if whole else case.setting].append(case)
    chosen: dict[str, list[Case]] = {family: [] for family in matrix.GROUPS}
    for number, ((family, _), cases) in enumerate(groups.items()):  # each group starts at another case
        chosen[family] += cases[number % min(EVERY, len(cases)) :: EVERY]
    return chosen


def limits(family: str) -> dict[str, float]:
    worst = WORST_SEEING if family in SEEING else WORST
    return {**worst, "median": MEDIAN_OF_FEW} if family in FEW else worst


def check(cases: list[Case], worst: dict[str, float]) -> None:
    """Every phase's peak, the card's memory, the operations and the parameters counted."""
    errors = {case.name: matrix.errors(case.name) for case in cases}
    for case in cases:
        name, error = case.name, errors[case.name]
        assert abs(error["tensors"]) <= worst["tensors"], (name, error)
        assert all(abs(error[column]) <= worst["allocated"] for column in ("allocated", *matrix.PHASES)), (name, error)
        if case.job.loss not in MIXING:
            assert abs(error["flops"]) <= worst["flops"], (name, error)
        assert abs(error["reserved"]) <= worst["reserved"], (name, error)
        assert matrix.analytic(name)[8:10] == ROWS[name][8:10], f"{name}: parameters"
    assert median(abs(error["allocated"]) for error in errors.values()) <= worst["median"]


def test_the_whole_matrix_has_been_traced() -> None:
    assert {case.name for case in all_cases()} == set(ROWS)


def test_the_sample_has_every_setting_of_every_family() -> None:
    cases = [case for family in sample().values() for case in family]
    assert {(case.family, case.setting) for case in cases} == {(case.family, case.setting) for case in all_cases()}
    assert len(cases) <= len(all_cases()) / 4


@pytest.mark.parametrize("family", matrix.GROUPS)
def test_a_sample(family: str) -> None:
    worst = limits(family)
    if family not in FEW:  # the median of a sample moves; the full run holds that of the whole family
        worst = {**worst, "median": 2 * worst["median"]}
    check(sample()[family], worst)


@pytest.mark.full
@pytest.mark.parametrize("family", matrix.GROUPS)
def test_every_case(family: str, run_folder: Path) -> None:
    matrix.estimate_family(family, run_folder)
    check([case for case in all_cases() if case.family == family], limits(family))
