"""More language models: traces of the real classes, and what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import vramplan
from tests import text_family_cases
from tests.traced_table import name_of
from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job

ROWS = text_family_cases.TABLE.load()
FAMILIES = [*text_family_cases.FAMILIES, text_family_cases.WITHIN]
EVERY = 10
"""One job of so many is in the sample of a family; the full run takes all."""


def check(family: str, jobs: list[Job]) -> None:
    """Every phase's peak, the operations and the parameters counted."""
    errors = [text_family_cases.TABLE.check(family, job, ROWS) for job in jobs]
    assert len(errors) < 5 or median(errors) <= 1e-3


@pytest.mark.parametrize(("number", "family"), list(enumerate(FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    check(family, text_family_cases.TABLE.jobs_of(family)[number % EVERY :: EVERY])


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_agree_with_traces(family: str) -> None:
    check(family, text_family_cases.TABLE.jobs_of(family))


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in text_family_cases.cases()} == set(ROWS)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported; by=trace runs it"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm = True is not supported; by=trace runs it"),
        ("minimax_m2", {"output_router_logits": True}, "output_router_logits = True is not supported"),
        ("minimax_m2", {"experts": "linear"}, "the mixture of minimax_m2 before transformers 5 is not modelled"),
        ("ernie4_5", {"is_causal": False}, "is_causal = False is not supported; by=trace runs it"),
        (text_family_cases.WITHIN, {"images": 1}, "images of gemma4_unified are not modelled yet"),
        ("helium", {"use_bidirectional_attention": True}, "transformers 5.23 ignores it there; leave it out"),
    ],
)
def test_what_is_refused(family: str, settings: dict[str, Any], message: str) -> None:
    spec = text_family_cases.spec_for(family)
    job = {key: value for key, value in settings.items() if key in Job.model_fields}
    config = {**spec.config, **{key: value for key, value in settings.items() if key not in job}}
    with pytest.raises(UnsupportedError, match=message):
        vramplan.estimate(spec.model_copy(update={"config": config}), "h200", method="full", **job)
