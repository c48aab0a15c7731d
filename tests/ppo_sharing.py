"""Runs of ms-swift's and TRL's PPOTrainer on emulated GPUs, in tests/ppo_sharing_runs.jsonl.

`python -m tests.ppo_sharing` runs those that the file lacks, as `tests.trl_sharing` does, where ms-swift 4.6 and trl
0.29.1 are installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS
from tests.trl_sharing import record_missing

RUNS = Path(__file__).parent / "ppo_sharing_runs.jsonl"
SCORER = "llama-3.2-1b"
SMALL: dict[str, Any] = {
    "task": "ppo", "ppo_trainer": "ms_swift", "value_model": SCORER, "reward_model": SCORER, "sequence_length": 256,
    "prompt_length": 64, "micro_batch_size": 2, "gradient_accumulation_steps": 2, "batches": "padded",
    "checkpointing": "none",
}  # fmt: skip
ALONE: dict[str, Any] = {"num_gpus": 1, "autocast": "bf16"}


def sharded(strategy: str) -> dict[str, Any]:
    """The settings of a strategy of DeepSpeed on two GPUs."""
    return {"num_gpus": 2, "autocast": "none", "strategy": strategy}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for method in ("full", "lora"):
        for shared in (ALONE, *map(sharded, ("zero3", "zero2", "zero1"))):
            reference = "model" if method == "full" else "adapters_off"
            job = {**SMALL, **shared, "method": method, "reference": reference}
            if (method, job.get("strategy")) == ("lora", "zero3"):  # with fp32 DeepSpeed stops
                job["lora_dtype"] = "bf16"
            yield {"model": SCORER, "config": {LAYERS: 4}, "job": job}
    for strategy, method in (("zero3", "full"), ("zero2", "lora")):
        reference = "model" if method == "full" else "adapters_off"
        job = {**SMALL, **sharded(strategy), "ppo_trainer": "trl", "method": method, "reference": reference}
        yield {"model": SCORER, "config": {LAYERS: 4}, "job": job}
    long: dict[str, Any] = {
        "method": "lora",
        "reference": "adapters_off",
        "sequence_length": 1024,
        "prompt_length": 512,
    }
    for shared in (ALONE, sharded("zero2")):
        job = {
            **SMALL,
            **shared,
            **long,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "rollout_batch_size": 2,
        }
        yield {"model": SCORER, "config": {LAYERS: 4}, "job": job}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.ppo_sharing_run"))
