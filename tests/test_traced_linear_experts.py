"""Mixtures of transformers 4 against traces of their classes (tests/linear_expert_cases.py)."""

from __future__ import annotations

import pytest

from tests import linear_expert_cases
from tests.traced_table import name_of
from vramplan.inputs.job import Job

ROWS = linear_expert_cases.TABLE.load()


@pytest.mark.parametrize(("family", "job"), list(linear_expert_cases.cases()), ids=lambda one: str(one)[:40])
def test_estimates_agree_with_traces(family: str, job: Job) -> None:
    assert linear_expert_cases.TABLE.check(family, job, ROWS) <= 1e-3


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in linear_expert_cases.cases()} == set(ROWS)
