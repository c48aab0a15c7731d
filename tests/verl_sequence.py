"""Runs of verl's own FSDP engines whose GPUs share the tokens of a micro-batch, in tests/verl_sequence_runs.jsonl.

`python -m tests.verl_sequence` runs those that the file lacks, on emulated GPUs, where `tests.verl_sharing` runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS
from tests.trl_sharing import record_missing
from tests.verl_sharing import CRITIC, FSDP1, JOB, MODEL, VERL, VERSION

RUNS = Path(__file__).parent / "verl_sequence_runs.jsonl"
NARROW: dict[str, Any] = {
    LAYERS: 4, "tie_word_embeddings": False, "hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 32, "intermediate_size": 768, "vocab_size": 4000,
}  # fmt: skip
"""Of which activations need most."""
SHARED: dict[str, Any] = {**VERL, "sequence_parallel": 2}
SHARED_CRITIC: dict[str, Any] = {**CRITIC, "sequence_length": 4096, "scored_tokens": 8192, "sequence_parallel": 2}
JOBS: tuple[dict[str, Any], ...] = (
    {"verl": SHARED},
    {"verl": SHARED, "checkpointing": "none"},
    {"verl": {**SHARED, "entropy": True, "keeps_root": True}, "fsdp": FSDP1, "checkpointing": "none"},
    {"verl": SHARED, "method": "lora", "sequence_length": 4095, "micro_batch_size": 3},
    {"verl": {**SHARED, "fused_head": "torch"}, "reference": "model"},
    {"verl": {**SHARED, "critic": SHARED_CRITIC}},
    {"verl": {**VERL, "critic": {**SHARED_CRITIC, "checkpointing": "none"}}, "micro_batch_size": 1},
    {"verl": {**SHARED, "sequence_parallel": 4}, "num_gpus": 4, "checkpointing": "none"},
    {"verl": {**SHARED, "sequence_parallel": 8}, "num_gpus": 8, "micro_batch_size": 4, "checkpointing": "none"},
    {"verl": SHARED, "num_gpus": 4, "sequence_length": 2048},
    {"verl": {"sequence_parallel": 2}, "task": None, "prompt_length": None, "generate_with": "transformers"},
    {"verl": {**SHARED, "reference_sequence_parallel": 1}, "reference": "model"},
)
"""Eight GPUs are more than heads of keys, which are repeated for them."""
OF_QWEN: dict[str, Any] = {"verl": SHARED, "sequence_length": 8192, "micro_batch_size": 1, "checkpointing": "none"}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for job in JOBS:
        tied = {"tie_word_embeddings": True} if "fused_head" in job["verl"] else {}  # a head of its own is a DTensor
        yield {"model": MODEL, "config": {**NARROW, **tied}, "job": {**JOB, "sequence_length": 4096, **job}}
    for model in ("qwen2.5-0.5b", "qwen3-0.6b"):
        few = {LAYERS: 3, "vocab_size": 8000, "tie_word_embeddings": False}
        yield {"model": model, "config": few, "job": {**JOB, **OF_QWEN}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, ({"version": VERSION, **case} for case in cases()), "tests.verl_sharing_run"))
