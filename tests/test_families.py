"""Families of 2025 and 2026: traces of the real classes, and what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import vramplan
from tests import family_cases
from tests.traced_table import name_of
from vramplan.analytic.generation import generation
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.job import Job

ROWS = family_cases.TABLE.load()
SHARING = "gemma4_text, inputs of layers"
FAMILIES = [*family_cases.FAMILIES, *family_cases.GEMMA, family_cases.OLDER_GEMMA, family_cases.LLAMA]
EVERY = 5
"""One job of so many is in the sample of a family; the full run takes all."""


def test_images_agree_with_traces() -> None:
    check(family_cases.SEEING, family_cases.TABLE.jobs_of(family_cases.SEEING))


def check(family: str, jobs: list[Job]) -> None:
    """Every phase's peak, the operations and the parameters counted."""
    errors = [family_cases.TABLE.check(family, job, ROWS, 0.01 if job.images else 1e-3, 0.016) for job in jobs]
    assert len(errors) < 5 or median(errors) <= 1e-3


@pytest.mark.parametrize(("number", "family"), list(enumerate(FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    check(family, family_cases.TABLE.jobs_of(family)[number % EVERY :: EVERY])


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_agree_with_traces(family: str) -> None:
    check(family, family_cases.TABLE.jobs_of(family))


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in family_cases.cases()} == set(ROWS)


@pytest.mark.parametrize(
    ("family", "settings", "error", "message"),
    [
        (SHARING, {"reentrant": True, "checkpointing": "full"}, UnsupportedError, "share keys and values"),
        (SHARING, {"strategy": "device_map", "num_gpus": 2}, UnsupportedError, "share keys and values"),
        (family_cases.GEMMA[0], {"fused_kernels": ("rms_norm",)}, UnsupportedError, "not modelled yet"),
        (family_cases.OLDER_GEMMA, {"projector": "lora"}, UnsupportedError, "as it idles"),
        (family_cases.OLDER_GEMMA, {"images": 1}, UnsupportedError, "images of gemma3n are not modelled yet"),
        (family_cases.OLDER_GEMMA, {"attention": "flash"}, ConfigError, "only with sdpa, eager"),
        ("gemma3n_text", {"altup_active_idx": 1}, UnsupportedError, "by=trace runs it"),
        ("gemma3n_text", {"num_kv_shared_layers": 12}, VramplanError, "without keys and values"),
        ("gemma3n_text", {"intermediate_size": [8, 16] * 7}, VramplanError, "layers of different widths"),
        ("gemma4_text", {"attention": "flash"}, ConfigError, "only with sdpa, eager"),
        ("gemma4_text", {"fused_kernels": ("rms_norm",)}, UnsupportedError, "not modelled yet"),
        ("llama4_text", {"fused_kernels": ("rms_norm",), "method": "full"}, UnsupportedError, "not modelled yet"),
        ("llama4_text", {"method": "lora"}, ConfigError, "PEFT cannot adapt this model's router"),
        ("llama4_text", {"output_router_logits": True}, UnsupportedError, "by=trace runs it"),
        ("arcee", {"fused_kernels": ("rms_norm",)}, ConfigError, "has nothing for arcee"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, UnsupportedError, "by=trace runs it"),
        (SHARING, {"num_kv_shared_layers": 11}, VramplanError, "without keys and values"),
    ],
)
def test_what_is_refused(family: str, settings: dict[str, Any], error: type[VramplanError], message: str) -> None:
    spec = family_cases.spec_for(family)
    job = {key: value for key, value in settings.items() if key in Job.model_fields}
    config = {**spec.config, **{key: value for key, value in settings.items() if key not in job}}
    with pytest.raises(error, match=message):
        vramplan.estimate(spec.model_copy(update={"config": config}), "h200", **job)


def test_generation_with_shared_keys_is_refused_by_name() -> None:
    from tests.helpers import card_of

    with pytest.raises(UnsupportedError, match="see only the end"):
        generation(family_cases.spec_for(SHARING), Job(), card_of(), 16)
