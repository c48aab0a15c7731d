"""Adds runs of LLaMA-Factory's own DPO, KTO and reward trainers on fake tensors to tests/trl_runs.jsonl.

`python -m tests.llamafactory_runs FOLDER` runs those that the file lacks; `FOLDER` has the unpacked package. Needs
trl 0.24, the newest that LLaMA-Factory 0.9.5 takes, and the torch and transformers of the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS, RUNS, SMALL

VERSION = "LLaMA-Factory 0.9.5"
LOSSES = {"dpo": "log_softmax", "kto": "log_softmax", "reward": "value_head"}
FREE: dict[str, Any] = {"task": "dpo", "reference": "none"}
REWARD: dict[str, Any] = {"task": "reward"}
OF_LLAMA: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"task": "dpo", "micro_batch_size": 1}, {}),
    ({"task": "dpo", "micro_batch_size": 5, "gradient_accumulation_steps": 4}, {}),
    ({"task": "dpo", "checkpointing": "none"}, {}),
    ({"task": "dpo", "checkpointing": "none", **FULL, "dtype": "fp32", "autocast": "none"}, {}),
    ({"task": "dpo", "autocast": "none"}, {}),
    ({"task": "dpo", "batches": "padded", "attention": "flash"}, {}),
    ({"task": "dpo"}, {"pref_loss": "ipo"}),
    ({"task": "dpo"}, {"pref_loss": "hinge"}),
    ({"task": "dpo"}, {"pref_ftx": 1.0}),
    ({"task": "dpo"}, {"ld_alpha": 0.5}),
    (FREE, {"pref_loss": "orpo"}),
    ({**FREE, **FULL}, {"pref_loss": "simpo"}),
    ({**FREE, "micro_batch_size": 1, "autocast": "none"}, {"pref_loss": "simpo"}),
    ({"task": "kto", "micro_batch_size": 4, "gradient_accumulation_steps": 2}, {}),
    ({"task": "kto", "checkpointing": "none", "autocast": "none"}, {}),
    ({"task": "kto", **FULL, "attention": "eager"}, {"pref_ftx": 0.5}),
    ({"task": "reward", "micro_batch_size": 1}, {}),
    ({"task": "reward", "micro_batch_size": 4, "gradient_accumulation_steps": 2}, {}),
    ({"task": "reward", "checkpointing": "none", "lora_dropout": 0.1}, {}),
    ({"task": "reward", "checkpointing": "none", **FULL, "dtype": "fp32"}, {}),
    ({"task": "reward", **FULL, "autocast": "none"}, {}),
    ({"task": "reward", **FULL, "dtype": "fp32", "autocast": "none"}, {}),
    ({"task": "reward", "autocast": "none", "reentrant": True}, {}),
    ({"task": "reward", "batches": "padded", "attention": "flash"}, {}),
)
"""A job on Llama, and LLaMA-Factory's settings."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""

    def case(model: str, config: dict[str, Any], job: dict[str, Any], **options: Any) -> dict[str, Any]:
        full = {**SMALL, **job, "loss": LOSSES[job["task"]]}
        return {"model": model, "config": config, "job": full, "options": options}

    for model, config, own in FAMILIES[:7]:
        for job in ({"task": "dpo"}, {"task": "dpo", **FULL}, {"task": "kto"}, REWARD, {**REWARD, **FULL}):
            yield case(model, config, {**own, **job})
    for job, options in OF_LLAMA:
        yield case("llama-3.2-1b", {LAYERS: 6}, job, **options)
    for task in ("dpo", "reward"):
        yield case("llama-3.1-8b", {}, {"task": task, "sequence_length": 2048})


def main() -> int:
    """Run what the file lacks."""
    from tests.llamafactory_trace import Custom, LlamaFactoryRun, load

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return LlamaFactoryRun(model_of(row), job, card_of(GPU), str(job.task), **row["options"]).go()

    Custom.classes = load(Path(sys.argv[1]) / "llamafactory")
    add_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
