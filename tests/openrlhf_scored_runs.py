"""Runs of OpenRLHF's reference and reward model alone, on fake tensors: tests/openrlhf_scored_runs.jsonl.

`python -m tests.openrlhf_scored_runs FOLDER` runs those that the file lacks, as :mod:`tests.openrlhf_actor_runs` does.
The forwards are the real ones of their processes (trainer/ray/launcher.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.openrlhf_actor_runs import OWN, PACKED, VERSION
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU

RUNS = Path(__file__).parent / "openrlhf_scored_runs.jsonl"
ALONE: dict[str, Any] = {**OWN, **FULL, "checkpointing": "none", "strategy": "zero2"}
MODELS: tuple[dict[str, Any], ...] = ({"reference": "model"}, {"reward_model": ""})
"""What scores; the reward model is the row's own model, whose name fills in."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:3]:
        for scorer in MODELS:
            yield _case(model, config, {**ALONE, **own}, scorer, {})
    for packed in ({}, PACKED):
        for scorer in MODELS:
            yield _case("qwen2.5-3b", {}, {**ALONE, **packed, "sequence_length": 4096}, scorer, {"scored_samples": 3})
    divided = {**ALONE, **PACKED}
    yield _case("llama-3.2-1b", {}, divided, MODELS[0], {"divides_logits": True, "scored_samples": 8})


def _case(
    model: str, config: dict[str, Any], job: dict[str, Any], scorer: dict[str, Any], own: dict[str, Any]
) -> dict[str, Any]:
    scorer = {name: value or model for name, value in scorer.items()}
    job = {**job, **scorer, "openrlhf": {"trains": "nothing", **own}}
    return {"version": VERSION, "model": model, "config": config if "reference" in scorer else {}, "job": job}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.openrlhf_actor_trace import load_actor
    from tests.openrlhf_scored_trace import OpenRlhfScoredRun

    folder = Path(sys.argv[1])
    classes = load_actor(folder)

    def run(row: dict[str, Any]) -> dict[str, int]:
        return OpenRlhfScoredRun(classes, model_of(row), job_of(row), card_of(GPU)).go()

    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
