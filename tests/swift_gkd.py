"""Adds runs of ms-swift's own GKDTrainer on fake tensors to tests/trl_gkd_runs.jsonl.

`python -m tests.swift_gkd` runs those that the file lacks; what it needs: `tests.swift_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import card_of, spec_of
from tests.recorded_runs import add_missing, job_of, model_of
from tests.swift_runs import VERSION
from tests.trl_gkd import FAMILIES, LLAMA, RUNS, SMALL
from tests.trl_runs import FULL, GPU, LAYERS

OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"prompt_length": 100, "sequence_length": 1024},
    {"prompt_length": 100, "sequence_length": 1024, "micro_batch_size": 1},
    {"prompt_length": 100, "sequence_length": 1024, "autocast": "none"},
    {**FULL, "prompt_length": 64, "sequence_length": 2048, "gradient_accumulation_steps": 4},
    {"divergence": "forward_kl", "sequence_length": 1024},
    {"divergence": "reverse_kl", "sequence_length": 1024, "micro_batch_size": 3},
    {**FULL, "dtype": "fp32", "checkpointing": "none"},
    {"attention": "flash", "micro_batch_size": 5},
)
"""Jobs on Llama."""
ROW: dict[str, Any] = {"batches": "packed", "attention": "flash"}
"""padding_free."""
IN_ONE_ROW: tuple[dict[str, Any], ...] = (
    {"prompt_length": 100},
    {**FULL, "micro_batch_size": 5, "gradient_accumulation_steps": 4, "checkpointing": "none"},
    {"micro_batch_size": 1, "autocast": "none", "prompt_length": 64},
    {**FULL, "adds_cross_entropy": True, "sequence_length": 1024, "micro_batch_size": 1, "prompt_length": 100},
)
"""The same in one row."""
WITH_CROSS_ENTROPY: tuple[dict[str, Any], ...] = (
    {"prompt_length": 100},
    {**FULL, "autocast": "none", "gradient_accumulation_steps": 2},
)
"""The same with sft_alpha."""

FROM_SERVER: tuple[dict[str, Any], ...] = (
    {"prompt_length": 100},
    {**FULL, "prompt_length": 64, "divergence": "reverse_kl", "checkpointing": "none"},
    {**ROW, "autocast": "none", "teacher_logits": 16, "adds_cross_entropy": True},
    {"micro_batch_size": 1, "sequence_length": 1024, "attention": "flash"},
)
"""The same with a teacher on other GPUs."""

LARGER_VOCABULARY = {"teacher": "qwen2.5-7b"}
"""A teacher with more words than Qwen2.5's small models."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the student, keys of its configuration, the job with its teacher."""
    own = {**SMALL, "loss": "logits_to_keep"}
    for student, teacher, config, settings in FAMILIES[:4]:
        for job in ({}, FULL):
            yield {"model": student, "config": config, "job": {**own, "teacher": teacher, **settings, **job}}
    for job in OF_LLAMA:
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**own, "teacher": LLAMA[1], **job}}
    for job in ({"prompt_length": 100}, {**FULL, "micro_batch_size": 4, "sequence_length": 1024}, {**ROW}):
        yield {"model": "qwen2.5-0.5b", "config": {LAYERS: 6}, "job": {**own, **LARGER_VOCABULARY, **job}}
    in_one_row = ({**ROW, **job} for job in IN_ONE_ROW)
    for job in (*in_one_row, *({**job, "adds_cross_entropy": True} for job in WITH_CROSS_ENTROPY)):
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**own, "teacher": LLAMA[1], **job}}
    for job in FROM_SERVER:
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**own, "teacher_logits": 64, **job}}


def main() -> int:
    """Run what the file lacks."""
    from tests.swift_gkd_trace import SwiftGkdRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        teacher = None if job.teacher is None else spec_of(job.teacher)
        return SwiftGkdRun(model_of(row), teacher, job, card_of(GPU)).go()

    add_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
