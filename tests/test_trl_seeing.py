"""Preference training and GRPO of vision-language models, compared with TRL's own trainers."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import errors_of
from tests.trl_runs import GPU
from tests.trl_seeing_runs import recorded
from vramplan import estimate, suggest
from vramplan.errors import VramplanError

RECORDED = recorded()
WORST, MEDIAN = 0.002, 0.00002
"""Largest relative error of a phase's peak, and the median over all phases of all runs."""


def name_of(row: dict[str, Any]) -> str:
    job = " ".join(f"{name}={value}" for name, value in row["job"].items() if name != "sequence_length")
    return f"{row['trl']} {row['seeing']} {job}"


@pytest.mark.parametrize("row", RECORDED[::8], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 60
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


MODEL = "qwen2-vl-2b-instruct"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "dpo", "reference": "precomputed"}, "stop at both"),
        ({"task": "dpo", "prompt_length": 100}, "images of a sample make"),
        ({"task": "dpo", "loss": "standard"}, "was not compared"),
        ({"task": "dpo", "videos": 1}, "take images alone"),
        ({"task": "orpo"}, "use images=0"),
        ({"task": "reward", "images": 0}, "of text alone"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate(MODEL, "h100", **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_alone_needs_less() -> None:
    length = {"sequence_length": 2048, "task": "dpo"}
    seen, read = (estimate(MODEL, "h100", images=number, **length) for number in (1, 0))
    assert read.peak_allocated_bytes < seen.peak_allocated_bytes
    assert estimate(MODEL, "h100", images=0, task="orpo").num_parameters == seen.num_parameters


def test_a_generation_holds_its_images() -> None:
    """Those that later optimizer steps train on wait on the GPU."""
    job = {"task": "grpo", "prompt_length": 1500, "sequence_length": 2048, "generate_with": "vllm_server"}
    one, four = (estimate(MODEL, "h100", micro_batch_size=8, steps_per_generation=number, **job) for number in (1, 4))
    rows = 5476 * 1176 * 4  # patches of 1024 x 1024 pixels, of 2 x 14 x 14 pixels in three colours
    assert four.peak_allocated_bytes - one.peak_allocated_bytes == pytest.approx(3 * 8 * rows, rel=0.01)


def test_the_largest_image_is_found() -> None:
    found = suggest(MODEL, "rtx4090", 16, task="dpo", image_size=(1024, 768), advice=False)
    assert found.max_micro_batch_size is not None
