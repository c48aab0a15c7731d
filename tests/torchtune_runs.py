"""The runs of torchtune's own DPO recipe on fake tensors that the tape is compared with, in tests/torchtune_runs.jsonl.

`python -m tests.torchtune_runs` runs those that the file lacks (needs torchtune 0.6.1 and torchao) and adds the peak of
live tensors in each phase, in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import GPU, LAYERS

RUNS = Path(__file__).parent / "torchtune_runs.jsonl"
VERSION = "torchtune 0.6.1"
SMALL: dict[str, Any] = {"sequence_length": 256, "micro_batch_size": 2}
DPO: dict[str, Any] = {
    "task": "dpo", "loss": "scaled_log_softmax", "loop": "plain", "method": "lora", "dtype": "bf16", "autocast": "none",
    "lora_dtype": "bf16", "optimizer": "adamw_torch_fused", "batches": "unpadded",
}  # fmt: skip
SHALLOW = ("llama-3.2-1b", {LAYERS: 6})
CASES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (*SHALLOW, {}),
    (*SHALLOW, {"gradient_accumulation_steps": 2}),
    (*SHALLOW, {"micro_batch_size": 1}),
    (*SHALLOW, {"dtype": "fp32", "lora_dtype": "fp32"}),
    (*SHALLOW, {"lora_targets": ("q_proj", "v_proj"), "lora_rank": 32, "lora_dropout": 0.1}),
    (*SHALLOW, {"optimizer": "adamw_torch_loop", "sequence_length": 1000, "micro_batch_size": 3}),
    (*SHALLOW, {"checkpointing": "none"}),
    ("mistral-7b-v0.3", {LAYERS: 5}, {}),
    ("mistral-7b-v0.3", {LAYERS: 5}, {"sequence_length": 1024, "gradient_accumulation_steps": 8}),
    ("llama-2-7b-hf", {LAYERS: 5}, {"micro_batch_size": 4}),
    ("llama-3.2-1b", {}, {"sequence_length": 1024, "micro_batch_size": 4}),
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, job in CASES:
        yield {"model": model, "config": config, "job": {**DPO, **SMALL, **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.torchtune_trace import TorchtuneRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        return TorchtuneRun(model_of(row), job_of(row), card_of(GPU)).go()

    add_missing(RUNS, ({"version": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
