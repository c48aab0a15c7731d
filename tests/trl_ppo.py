"""Runs of TRL's PPOTrainer with a value model on fake tensors, in tests/trl_ppo_runs.jsonl.

`python -m tests.trl_ppo FOLDER/trl-1.9.0` runs those that the file lacks, with the package of trl 1.9 from a folder:
from 1.13 on there is no PPOTrainer. It adds the peak of live tensors in each phase, in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "trl_ppo_runs.jsonl"
SMALL: dict[str, Any] = {
    "task": "ppo", "sequence_length": 256, "prompt_length": 64, "micro_batch_size": 2, "batches": "padded",
    "gradient_accumulation_steps": 2, "checkpointing": "none", "autocast": "none",
}  # fmt: skip
BF16: dict[str, Any] = {"autocast": "bf16"}
LLAMA = "llama-3.2-1b", "llama-3.2-1b", {LAYERS: 4}
FAMILIES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("qwen2.5-0.5b", "qwen2.5-0.5b", {LAYERS: 6}, {}),
    ("qwen3-0.6b", "qwen3-0.6b", {LAYERS: 6}, {}),
    ("pythia-160m", "pythia-160m", {LAYERS: 6}, {}),
    ("gemma-2-2b", "gemma-2-2b", {LAYERS: 6}, {"attention": "eager"}),
    ("gpt2", "gpt2", {"n_layer": 6}, {}),
    ("llama-3.2-1b", "llama-3.2-3b", {LAYERS: 6}, {}),
)
"""Policies with the model that values and scores, keys of the policy's configuration, settings of the job."""
OF_LLAMA: tuple[dict[str, Any], ...] = (
    FULL,
    {},
    {**FULL, **BF16},
    BF16,
    {**FULL, **BF16, "dtype": "fp32"},
    {**FULL, "dtype": "fp32"},
    {**FULL, "micro_batch_size": 1},
    {**FULL, "gradient_accumulation_steps": 1},
    {**FULL, **BF16, "gradient_accumulation_steps": 4, "rollout_batch_size": 2},
    {"micro_batch_size": 4, "gradient_accumulation_steps": 1, "sequence_length": 1024, "prompt_length": 512},
    {**BF16, "reference": "model"},
    {**FULL, "value_dtype": "fp32", "reward_dtype": "fp32", "attention": "eager"},
    {"lora_rank": 64, "lora_targets": ("q_proj", "v_proj")},
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""

    def case(model: str, scorer: str, config: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
        scorers = {"value_model": scorer, "reward_model": scorer}
        return {"model": model, "config": config, "job": {**SMALL, **scorers, **job}}

    for model, scorer, config, own in FAMILIES:
        yield case(model, scorer, config, {**own, **FULL, **BF16})
        yield case(model, scorer, config, own)
    for job in OF_LLAMA:
        yield case(*LLAMA, job)


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    sys.path[:0] = sys.argv[1:]
    from tests.trl_ppo_trace import PpoRun

    add_missing(RUNS, cases(), lambda row: PpoRun(model_of(row), job_of(row), card_of(GPU)).go())
    return 0


if __name__ == "__main__":
    sys.exit(main())
