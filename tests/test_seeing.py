"""Models that see, of 2025 and 2026: traces of the real classes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

import vramplan
from tests import matrix, seeing_cases
from tests.traced_table import name_of
from vramplan.errors import ConfigError, SpecError, UnsupportedError
from vramplan.inputs.catalog import load_spec
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.resolve import resolve_model

ROWS = seeing_cases.TABLE.load()
ALL = [*seeing_cases.FAMILIES, seeing_cases.MIXTURE, *seeing_cases.GEMMAS]
EVERY = 5
"""One job of so many is in the sample of a family; the full run takes all."""


def check(family: str, jobs: list[Job]) -> None:
    """Every phase's peak, the operations and the parameters counted."""
    errors = []
    for job in jobs:
        found, traced = seeing_cases.TABLE.analytic(family, job), ROWS[name_of(family, job)]
        of = dict(zip(matrix.COLUMNS[1:], (a / b - 1 for a, b in zip(found, traced, strict=True)), strict=True))
        assert all(abs(of[name]) <= 0.015 for name in ("tensors", "allocated", *matrix.PHASES)), (job, of)
        assert abs(of["flops"]) <= 1e-3, (job, of)
        assert found[7:] == traced[7:], "parameters"
        errors.append(abs(of["tensors"]))
    assert len(errors) < 5 or median(errors) <= 1e-4


def jobs_of(family: str) -> list[Job]:
    """The jobs that a family was traced with."""
    return [job for name, job in seeing_cases.cases() if name == family]


@pytest.mark.parametrize(("number", "family"), list(enumerate(ALL)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    check(family, jobs_of(family)[number % EVERY :: EVERY])


@pytest.mark.full
@pytest.mark.parametrize("family", ALL)
def test_estimates_agree_with_traces(family: str) -> None:
    check(family, jobs_of(family))


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in seeing_cases.cases()} == set(ROWS)


def test_a_whole_omni_model_is_read_as_its_thinker(tmp_path: Path) -> None:
    thinker = load_spec("Qwen/Qwen2.5-Omni-7B").config
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {}}))
    found = resolve_model(str(tmp_path))
    assert found.model_type == "qwen2_5_omni_thinker"
    estimate = vramplan.estimate(found, "h200", micro_batch_size=1)
    assert estimate.num_parameters == load_spec("Qwen/Qwen2.5-Omni-7B").num_parameters
    assert any("the Thinker alone" in note for note in estimate.notes)


def test_pixels_that_no_one_casts_are_refused() -> None:
    spec = seeing_cases.spec_for("llama4")
    with pytest.raises(ConfigError, match="autocast=bf16"):
        vramplan.estimate(spec, "h200", dtype="bf16", autocast="none", method="full", images=1)
    assert vramplan.estimate(spec, "h200", dtype="bf16", autocast="none", method="full", images=0).fits


@pytest.mark.parametrize("model_type", ["kimi_vl", "deepseek_vl_v2", "minicpmv", "minicpmo", "csm", "exaone"])
def test_what_is_not_modelled_names_the_nearest_model(model_type: str) -> None:
    spec = ModelSpec(name="mine", model_type=model_type, config={"model_type": model_type})
    with pytest.raises(UnsupportedError, match="is the nearest") as caught:
        vramplan.estimate(spec, "h200")
    assert load_spec(str(caught.value).split()[-4].rstrip(",")).name in str(caught.value)


def test_a_thinker_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_omni_moe", "thinker_config": 3}))
    with pytest.raises(SpecError, match="thinker_config"):
        resolve_model(str(tmp_path))
