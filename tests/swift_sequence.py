"""Runs of ms-swift's trainers on emulated GPUs that share each text, in tests/swift_sequence_runs.jsonl.

`python -m tests.swift_sequence` runs those that the file lacks, as `tests.swift_sharing` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.swift_runs import VERSION
from tests.trl_runs import LAYERS
from tests.trl_sharing import STRATEGIES, record_missing

RUNS = Path(__file__).parent / "swift_sequence_runs.jsonl"
MODEL = "llama-3.2-1b", {LAYERS: 3}
"""Eight heads of keys."""
SHARED: dict[str, Any] = {
    "num_gpus": 2, "swift": {"sequence_parallel": 2}, "sequence_length": 1024, "micro_batch_size": 2,
    "attention": "flash",
}  # fmt: skip
ROW: dict[str, Any] = {"batches": "packed"}
DDP: dict[str, Any] = {"method": "lora"}
ZERO3: dict[str, Any] = {**STRATEGIES["zero3"], "method": "full", "reentrant": True}
CHUNKS: dict[str, Any] = {"swift": {"sequence_parallel": 2, "cross_entropy_chunk": 256}}
OF_TEXT: tuple[dict[str, Any], ...] = (
    {**ROW, **DDP},
    {**ROW, **CHUNKS, **ZERO3},
    {**ROW, **STRATEGIES["zero2"], "method": "full", "checkpointing": "none", "micro_batch_size": 1},
    {"batches": "unpadded", **DDP, "checkpointing": "none", "sequence_length": 1001},
    {**ROW, **CHUNKS, **STRATEGIES["zero1"], "method": "lora", "checkpointing": "none"},
    {**ROW, **ZERO3, "num_gpus": 4},
    {"batches": "unpadded", **ZERO3},
)
"""Jobs of the next token."""
DPO: dict[str, Any] = {"task": "dpo", "loss": "logits_to_keep", "prompt_length": 256}
GRPO: dict[str, Any] = {
    "task": "grpo", "loss": "logits_to_keep", "prompt_length": 256, "num_generations": 2, "importance_sampling": True,
    "gradient_accumulation_steps": 2,
}  # fmt: skip
FROM_SERVER: dict[str, Any] = {"zero": {"prefetch_bucket_size": 0}}
OF_TASKS: tuple[dict[str, Any], ...] = (
    {**DPO, **ROW, **DDP},
    {**DPO, **ROW, **ZERO3},
    {**DPO, "batches": "padded", **DDP, "micro_batch_size": 1},
    {**GRPO, "batches": "padded", **DDP},
    {**GRPO, **ROW, **ZERO3, **FROM_SERVER, "micro_batch_size": 1, "num_generations": 2},
    {**GRPO, **ROW, **DDP, "reference": "adapters_off", "micro_batch_size": 1},
)
"""Jobs of preference and reinforcement training."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for job in (*OF_TEXT, *OF_TASKS):
        yield {"trl": VERSION, "model": MODEL[0], "config": MODEL[1], "job": {**SHARED, **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.swift_sequence_run"))
