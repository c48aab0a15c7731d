"""The runs of LLaMA-Factory's PPO on fake tensors, in tests/llamafactory_ppo_runs.jsonl.

`python -m tests.llamafactory_ppo TRL LLAMAFACTORY` runs those that the file lacks; the folders have the packages trl
0.9.6, the newest that its PPO takes, and llamafactory 0.9.5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "llamafactory_ppo_runs.jsonl"
SMALL: dict[str, Any] = {
    "task": "ppo", "sequence_length": 256, "prompt_length": 64, "micro_batch_size": 2, "batches": "padded",
    "gradient_accumulation_steps": 2, "reentrant": True,
}  # fmt: skip
ADAPTERS: dict[str, Any] = {"reward_adapters": True}
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {},
    {**ADAPTERS, "micro_batch_size": 1},
    {**ADAPTERS, "micro_batch_size": 4, "gradient_accumulation_steps": 1},
    {**ADAPTERS, "gradient_accumulation_steps": 4},
    {**ADAPTERS, "checkpointing": "none", "reentrant": False},
    {**ADAPTERS, "checkpointing": "none", "reentrant": False, "lora_dropout": 0.1},
    {**ADAPTERS, "reentrant": False, "sequence_length": 1024, "prompt_length": 512},
    {**ADAPTERS, "lora_rank": 64, "lora_targets": ("q_proj", "v_proj")},
    {**ADAPTERS, "attention": "eager"},
    {"reward_model": "llama-3.2-1b"},
    {"reward_model": "llama-3.1-8b", "micro_batch_size": 4, "gradient_accumulation_steps": 1},
    {"reward_model": "llama-3.2-1b", "micro_batch_size": 1, "sequence_length": 1024, "attention": "eager"},
    {"reward_model": "llama-3.2-1b", **FULL},
    {**FULL, "gradient_accumulation_steps": 1},
    {**FULL, "dtype": "fp32", "micro_batch_size": 1},
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:7]:
        yield {"model": model, "config": config, "job": {**SMALL, **ADAPTERS, **own}}
    for job in OF_LLAMA:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 4}, "job": {**SMALL, **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.llamafactory_ppo_trace import PpoRun, load

    code = load(Path(sys.argv[1]), Path(sys.argv[2]))
    add_missing(RUNS, cases(), lambda row: PpoRun(model_of(row), job_of(row), card_of(GPU), code).go())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
