"""Runs of ms-swift's GRPOTrainer of vision-language models on fake tensors, in tests/swift_seeing_grpo_runs.jsonl.

`python -m tests.swift_seeing_grpo` runs those that the file lacks. Needs what `tests.swift_runs` needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.swift_runs import VERSION
from tests.trl_runs import GPU
from tests.trl_seeing_runs import FROZEN, TOWER, WHOLE, case

RUNS = Path(__file__).parent / "swift_seeing_grpo_runs.jsonl"
OFF, MODEL = {"reference": "adapters_off"}, {"reference": "model"}
OF_EACH: tuple[dict[str, Any], ...] = (OFF, {**FROZEN, "micro_batch_size": 1, "gradient_accumulation_steps": 2})
OF_ONE: tuple[dict[str, Any], ...] = (
    {"micro_batch_size": 4, "num_generations": 4},
    {**OFF, "micro_batch_size": 1, "gradient_accumulation_steps": 4},
    {**FROZEN, **MODEL},
    {**OFF, "checkpointing": "none"},
    {"images": 2, "autocast": "none"},
    {"entropy_graph": True},
    WHOLE,
    {**TOWER, "checkpointing": "none"},
    {**FROZEN, "dtype": "fp32"},
    {**OFF, "vision": "lora"},
    {"projector": "lora"},
    {**OFF, "attention": "flash"},
    {"reentrant": True},
)
OF_OTHERS: tuple[dict[str, Any], ...] = ({**OFF, "micro_batch_size": 4, "num_generations": 4}, WHOLE, TOWER)


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""
    for family, jobs in (("qwen2_5_vl", OF_ONE), ("qwen2_vl", OF_OTHERS), ("qwen3_vl", OF_OTHERS)):
        for job in (*OF_EACH, *jobs):
            yield {**case(family, {"task": "grpo", **job}, "logits_to_keep"), "trl": VERSION}
    for family, job in (("qwen2_5_vl", OFF), ("qwen2_vl", FROZEN), ("qwen3_vl", {**OFF, "checkpointing": "none"})):
        row = case(family, {"task": "grpo", **job, "micro_batch_size": 4, "num_generations": 4}, "logits_to_keep")
        yield {**row, "trl": VERSION, "vocabulary": 151936}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.swift_seeing_grpo_trace import SeeingSwiftGrpoRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        options = {"log_entropy": True} if job.entropy_graph else {}
        return SeeingSwiftGrpoRun(model_of(row), job, card_of(GPU), "grpo", job.prompt_length or 0, **options).go()

    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
