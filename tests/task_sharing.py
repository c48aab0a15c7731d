"""Runs of trainers of classifiers, embeddings and rerankers on emulated GPUs, in tests/task_sharing_runs.jsonl.

`python -m tests.task_sharing` runs those that the file lacks: transformers' Trainer 5.23 and sentence-transformers 6.2
(see `tests.trl_sharing` for what that needs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS
from tests.trl_sharing import STRATEGIES, record_missing

RUNS = Path(__file__).parent / "task_sharing_runs.jsonl"
LLAMA = ("llama-3.2-1b", {LAYERS: 4, "vocab_size": 32000})
BERT = ("bert-base-uncased", {LAYERS: 4})
SMALL: dict[str, Any] = {"num_gpus": 2, "sequence_length": 256, "micro_batch_size": 4, "loss": "standard"}
SAVED: dict[str, Any] = {"modules_to_save": ["score"]}
"""What PEFT trains in full of a classifier."""
UNUSED: dict[str, Any] = {"ddp_find_unused_parameters": True}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""

    def case(strategy: str, method: str, task: str, model: Any = LLAMA, **more: Any) -> dict[str, Any]:
        stored = {"dtype": "fp32"} if method == "full" and "zero" not in strategy else {}
        if (strategy, method) == ("zero3", "lora"):  # add_adapter(); autocast_adapter_dtype=False
            stored = {"lora_dtype": "bf16"}
        job = {**SMALL, "task": task, "method": method, **STRATEGIES[strategy], **stored, **more}
        return {"model": model[0], "config": model[1], "job": job}

    yield case("zero3", "full", "sequence_classification")
    yield case("zero3", "lora", "sequence_classification", **SAVED)
    yield case("fsdp2", "full", "sequence_classification")
    yield case("fsdp2", "lora", "sequence_classification", **SAVED)
    yield case("fsdp1", "full", "sequence_classification")
    yield case("fsdp2", "full", "token_classification", checkpointing="none")
    yield {**case("ddp", "full", "sequence_classification"), "options": UNUSED}
    yield case("zero3", "full", "sequence_classification", BERT)
    for checkpointing in ({}, {"checkpointing": "none"}):
        yield case("zero3", "full", "embedding", **checkpointing)
    yield case("zero3", "lora", "embedding")
    yield case("zero3", "full", "embedding", BERT, pooling="mean")
    for strategy in ("zero3", "fsdp2"):
        yield case(strategy, "full", "reranker")


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.task_sharing_run"))
