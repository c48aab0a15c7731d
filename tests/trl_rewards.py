"""The runs of TRL's GRPOTrainer and RLOOTrainer with a reward model, in tests/trl_reward_runs.jsonl.

`python -m tests.trl_rewards` runs those that the file lacks (needs trl 1.16), and adds the peak of live tensors in each
phase, in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_grpo import RLOO, SMALL
from tests.trl_runs import FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "trl_reward_runs.jsonl"
REWARD_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("qwen2.5-0.5b", {}),
    ("qwen3-0.6b", {}),
    ("llama-3.2-1b", {}),
    ("gemma-2-2b", {"attention": "eager"}),
    ("gemma-3-1b-pt", {}),
    ("phi-2", {}),
    ("phi-3-mini-4k-instruct", {}),
    ("gpt2", {}),
    ("pythia-160m", {}),
    ("smollm2-135m", {}),
    ("opt-1.3b", {}),
    ("starcoder2-3b", {}),
)
OF_QWEN: tuple[dict[str, Any], ...] = (
    FULL,
    {"micro_batch_size": 8, "sequence_length": 2048, "prompt_length": 512},
    {"micro_batch_size": 4, "gradient_accumulation_steps": 4},
    {"micro_batch_size": 2, "gradient_accumulation_steps": 8, "steps_per_generation": 4, "sequence_length": 1024},
    {"reward_dtype": "fp32"},
    {"reward_dtype": "fp32", "dtype": "fp32"},
    {"autocast": "none", "micro_batch_size": 8},
    {"autocast": "none", "reward_dtype": "fp32", "micro_batch_size": 8},
    {"attention": "eager"},
    {"sequence_length": 8192, "prompt_length": 512},
    {"reference": "adapters_off", "sequence_length": 3000},
    {"micro_batch_size": 1, "gradient_accumulation_steps": 2, "num_generations": 2},
    RLOO,
    {**RLOO, **FULL, "gradient_accumulation_steps": 2},
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    small = {**SMALL, "loss": "chunked", "micro_batch_size": 4}
    for model, own in REWARD_MODELS:
        policy = "gemma-2-2b" if own else "llama-3.2-1b"
        yield {"model": policy, "config": {LAYERS: 4}, "job": {**small, **own, "reward_model": model}}
    for job in OF_QWEN:
        row = {**small, "reward_model": "qwen2.5-0.5b", **job}
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 4}, "job": row}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.trl_reward_trace import RewardedRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return RewardedRun(model_of(row), job, card_of(GPU), str(job.task), job.prompt_length or 0).go()

    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
