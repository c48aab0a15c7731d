"""Adds runs of ms-swift's own preference and reward trainers on fake tensors to tests/trl_runs.jsonl.

`python -m tests.swift_runs` runs those that the file lacks. Needs ms-swift 4.6 with trl 0.29.1, the newest that it
takes, and the torch and transformers of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS, RUNS, SMALL

VERSION = "ms-swift 4.6.0"
OWN = ("dpo", "kto")
"""Tasks whose log-probabilities are ms-swift's own."""
OF_LLAMA: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"task": "dpo", "micro_batch_size": 1}, {}),
    ({"task": "dpo", "micro_batch_size": 5, "gradient_accumulation_steps": 4}, {}),
    ({"task": "dpo", "checkpointing": "none"}, {}),
    ({"task": "dpo", "checkpointing": "none", **FULL, "dtype": "fp32", "autocast": "none"}, {}),
    ({"task": "dpo", "autocast": "none", "prompt_length": 100}, {}),
    ({"task": "dpo", "prompt_length": 100}, {}),
    ({"task": "dpo", "batches": "padded", "attention": "flash"}, {}),
    ({"task": "dpo"}, {"loss_type": "ipo"}),
    ({"task": "dpo"}, {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]}),
    ({"task": "dpo"}, {"rpo_alpha": 1.0}),
    ({"task": "dpo"}, {"ld_alpha": 0.5}),
    ({"task": "kto", "micro_batch_size": 4, "gradient_accumulation_steps": 2}, {}),
    ({"task": "kto", "micro_batch_size": 1, "gradient_accumulation_steps": 4, "prompt_length": 100}, {}),
    ({"task": "kto", "checkpointing": "none", "autocast": "none"}, {}),
    ({"task": "kto", **FULL, "attention": "eager"}, {}),
    ({"task": "orpo"}, {}),
    ({"task": "orpo", **FULL, "micro_batch_size": 1, "autocast": "none"}, {}),
    ({"task": "cpo"}, {}),
    ({"task": "simpo", "checkpointing": "none"}, {}),
    ({"task": "reward"}, {}),
    ({"task": "reward", **FULL}, {"center_rewards_coefficient": 0.01}),
)
"""A job on Llama, and ms-swift's settings."""
ROW: dict[str, Any] = {"batches": "packed", "attention": "flash"}
"""padding_free."""
IN_ONE_ROW: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"task": "dpo", "micro_batch_size": 1, "prompt_length": 100}, {}),
    ({"task": "dpo", "micro_batch_size": 5, "gradient_accumulation_steps": 4}, {}),
    ({"task": "dpo", "checkpointing": "none", "autocast": "none"}, {}),
    ({"task": "dpo", "prompt_length": 64}, {"rpo_alpha": 1.0}),
    ({"task": "dpo"}, {"ld_alpha": 0.5}),
    ({"task": "kto", "micro_batch_size": 3, "gradient_accumulation_steps": 2, "prompt_length": 64}, {}),
    ({"task": "kto", **FULL}, {}),
)
"""The same on Llama."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""

    def case(model: str, config: dict[str, Any], job: dict[str, Any], **options: Any) -> dict[str, Any]:
        loss = "logits_to_keep" if job["task"] in OWN else "standard"
        return {"model": model, "config": config, "job": {**SMALL, **job, "loss": loss}, "options": options}

    for model, config, own in FAMILIES[:7]:
        for job in ({"task": "dpo"}, {"task": "dpo", **FULL}, {"task": "kto"}):
            yield case(model, config, {**own, **job})
    for job, options in OF_LLAMA:
        yield case("llama-3.2-1b", {LAYERS: 6}, job, **options)
    for model, config, _ in FAMILIES[1:3]:
        for job in ({"task": "dpo"}, {"task": "dpo", **FULL}, {"task": "kto"}):
            yield case(model, config, {**ROW, **job})
    for job, options in IN_ONE_ROW:
        yield case("llama-3.2-1b", {LAYERS: 6}, {**ROW, **job}, **options)
    yield case("llama-3.1-8b", {}, {"task": "dpo", "sequence_length": 2048})


def main() -> int:
    """Run what the file lacks."""
    from tests.swift_trace import SwiftRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        task, prompt = str(job.task), job.prompt_length or 0
        return SwiftRun(model_of(row), job, card_of(GPU), task, prompt, **row["options"]).go()

    add_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
