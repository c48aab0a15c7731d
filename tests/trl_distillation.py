"""Runs of TRL's DistillationTrainer on fake tensors, in tests/trl_distillation_runs.jsonl.

`python -m tests.trl_distillation` runs those that the file lacks (needs trl 1.16).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of, spec_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_gkd import FAMILIES, LLAMA, SMALL
from tests.trl_runs import FULL, GPU, LAYERS, TRL

RUNS = Path(__file__).parent / "trl_distillation_runs.jsonl"
OWN: dict[str, Any] = {**SMALL, "loss": "chunked", "autocast": "none"}
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {**FULL, "dtype": "fp32"},
    {**FULL, "dtype": "fp32", "divergence": "reverse_kl", "prompt_length": 200},
    {"micro_batch_size": 1, "divergence": "forward_kl"},
    {"micro_batch_size": 5, "gradient_accumulation_steps": 2, "prompt_length": 100},
    {**FULL, "checkpointing": "none", "sequence_length": 3072},
    {"checkpointing": "none", "attention": "flash"},
)
"""Jobs on Llama."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the student, keys of its configuration, the job with its teacher."""
    for number, (student, teacher, config, own) in enumerate(FAMILIES[:7]):
        job = FULL if number % 2 else {}
        yield {"model": student, "config": config, "job": {**OWN, "teacher": teacher, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**OWN, "teacher": LLAMA[1], **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.trl_distillation_trace import DistillationRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return DistillationRun(model_of(row), spec_of(str(job.teacher)), job, card_of(GPU)).go()

    add_missing(RUNS, ({"trl": TRL, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
