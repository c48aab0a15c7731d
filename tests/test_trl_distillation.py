"""TRL's DistillationTrainer on the tape, compared with its own code (tests/trl_distillation_runs.jsonl)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recorded_runs import errors_of
from tests.trl_distillation import recorded
from tests.trl_runs import GPU
from vramplan import estimate

RECORDED = recorded()
WORST = 0.0003
SETTINGS: dict[str, Any] = {
    "task": "gkd",
    "teacher": "Qwen/Qwen3-4B",
    "sequence_length": 1024,
    "prompt_length": 256,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
}


@pytest.mark.parametrize("row", RECORDED[::7], ids=lambda row: row["model"])
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 12
    assert max(error for row in RECORDED for error in errors_of(row, GPU).values()) <= WORST


def test_no_logits_are_held_whole() -> None:
    whole, tiles = (
        estimate("Qwen/Qwen3-0.6B", "h100", loss=loss, autocast="none", **SETTINGS).phases["forward"]
        for loss in ("standard", "chunked")
    )
    logits = 2 * 768 * 151936 * 2
    assert whole - tiles > 5 * logits


def test_all_completions_of_a_step_are_generated_at_once() -> None:
    made = estimate("Qwen/Qwen3-0.6B", "h100", loss="chunked", **SETTINGS)
    phases = [mark.phase for mark in made.timeline.marks]  # type: ignore[union-attr]
    step = phases[phases.index("generation") : phases.index("optimizer")]
    assert step == ["generation", *(2 * ["forward", "teacher", "forward", "backward"])]
    assert made.job.autocast == "none"
