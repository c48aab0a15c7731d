"""Reserved memory of trainers under ZeRO and FSDP on emulated GPUs, in tests/reserved_sharing_runs.jsonl.

`python -m tests.reserved_sharing` runs those that the file lacks (see `tests.trl_sharing` for what that needs). It adds
the peak of bytes in each phase, and what PyTorch's allocator holds in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS
from tests.trl_sharing import SMALL, STRATEGIES, ZERO, record_missing

RUNS = Path(__file__).parent / "reserved_sharing_runs.jsonl"
TRL, TASKS = "tests.trl_sharing_run", "tests.task_sharing_run"
UNTIED = ("llama-3.2-1b", {LAYERS: 3, "vocab_size": 32000, "tie_word_embeddings": False})
TIED = ("llama-3.2-1b", {LAYERS: 4})
WIDE = ("qwen2.5-7b", {LAYERS: 4, "vocab_size": 32000})
FSDP1: dict[str, Any] = {**SMALL, **STRATEGIES["fsdp1"]}
CLASSIFIER: dict[str, Any] = {
    "num_gpus": 2, "sequence_length": 512, "micro_batch_size": 1, "loss": "standard", "task": "sequence_classification",
    "method": "lora", "strategy": "zero3", **ZERO, "lora_dtype": "bf16", "modules_to_save": ["score"],
}  # fmt: skip


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the program, the model, keys of its configuration, the job."""

    def case(program: str, model: Any, job: dict[str, Any]) -> dict[str, Any]:
        return {"program": program, "model": model[0], "config": model[1], "job": job}

    yield case(TRL, TIED, {**FSDP1, "task": "reward", "loss": "standard", "method": "lora"})
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "lora", "offload": "all"})
    yield case(TASKS, WIDE, CLASSIFIER)
    yield case(TASKS, WIDE, {**CLASSIFIER, "zero": {"overlap_comm": True}})
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "full", "dtype": "fp32"})
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "full"})
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "full", "dtype": "fp32", "offload": "all"})
    flat = {"fsdp": {"version": 1, "use_orig_params": False}}
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "lora", **flat})
    yield case(TRL, UNTIED, {**FSDP1, "loss": "chunked", "method": "lora", **flat, "offload": "all"})


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.reserved_sharing_run"))
