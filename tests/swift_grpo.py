"""Runs of ms-swift's own GRPOTrainer on fake tensors, in tests/swift_grpo_runs.jsonl: it scores and trains.

`python -m tests.swift_grpo` runs those that the file lacks, and adds the peak of live tensors in each phase, in bytes.
It needs what `tests.swift_runs` needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.swift_runs import VERSION
from tests.trl_grpo import SMALL
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "swift_grpo_runs.jsonl"
OFF, MODEL = {"reference": "adapters_off"}, {"reference": "model"}
OF_LLAMA: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (OFF, {}),
    ({**OFF, "gradient_accumulation_steps": 4}, {}),
    ({**OFF, "checkpointing": "none", "micro_batch_size": 4, "num_generations": 4}, {}),
    ({**FULL, **MODEL, "gradient_accumulation_steps": 2}, {}),
    ({**FULL, "autocast": "none"}, {}),
    ({**FULL, "dtype": "fp32"}, {}),
    ({"autocast": "none", "checkpointing": "none"}, {}),
    ({"micro_batch_size": 1, "gradient_accumulation_steps": 2, "lora_dropout": 0.05}, {}),
    ({"attention": "flash"}, {}),
    ({"reentrant": True}, {}),
    ({"sequence_length": 2048, "prompt_length": 512}, {}),
    ({"sequence_length": 2048, "prompt_length": 1536, "micro_batch_size": 6, "num_generations": 6}, {}),
    ({"prompt_length": 1}, {}),
    ({}, {"importance_sampling_level": "sequence", "loss_type": "dapo", "epsilon_high": 0.28}),
    (OFF, {"importance_sampling_level": "sequence_token", "loss_type": "dr_grpo"}),
    ({}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    ({}, {"loss_type": "sapo"}),
    ({}, {"loss_type": "bnpo", "delta": 4.0, "overlong_filter": True}),
    ({"entropy_graph": True}, {"log_entropy": True}),
    ({**OFF, "entropy_graph": True, "checkpointing": "none"}, {"top_entropy_quantile": 0.2}),
    ({"entropy_graph": True, "autocast": "none"}, {"log_entropy": True, "top_entropy_quantile": 0.2}),
    (
        {"entropy_graph": True, "micro_batch_size": 1, "gradient_accumulation_steps": 2, "sequence_length": 1088},
        {"log_entropy": True},
    ),
    ({**OFF, "loss": "liger_logits_to_keep"}, {"use_liger_kernel": True}),
    (
        {**FULL, **MODEL, "loss": "liger_logits_to_keep", "gradient_accumulation_steps": 2, "autocast": "none"},
        {"use_liger_kernel": True},
    ),
    (
        {"loss": "liger_logits_to_keep", "checkpointing": "none", "micro_batch_size": 4, "num_generations": 4},
        {"use_liger_kernel": True, "loss_type": "dapo"},
    ),
    (OFF, {"kl_in_reward": True, "advantage_estimator": "reinforce_plus_plus"}),
)
"""A job on Llama, and ms-swift's settings."""
OLDER = "ms-swift 4.3.2"
"""A version before 4.4; its runs need its package before others in PYTHONPATH."""
ROW: dict[str, Any] = {"batches": "packed", "attention": "flash"}
"""padding_free."""
IN_ONE_ROW: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({**OFF, "autocast": "none"}, {}),
    ({**FULL, "micro_batch_size": 4, "num_generations": 4, "checkpointing": "none"}, {}),
    ({"micro_batch_size": 1, "gradient_accumulation_steps": 2, "prompt_length": 100}, {"loss_type": "dapo"}),
    ({"micro_batch_size": 3, "num_generations": 3, "prompt_length": 128, "entropy_graph": True}, {"log_entropy": True}),
)
"""The same in one row."""
OF_OLDER: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({**OFF, "loss": "standard"}, {}),
    ({**FULL, **MODEL, "loss": "standard", "gradient_accumulation_steps": 2, "autocast": "none"}, {}),
    (ROW, {}),
    (
        {**ROW, "micro_batch_size": 3, "num_generations": 3, "prompt_length": 128, "entropy_graph": True},
        {"log_entropy": True},
    ),
)
"""The same before 4.4: by TRL's function, or in one row."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job, ms-swift's options."""

    def case(model: str, config: dict[str, Any], job: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        return {"model": model, "config": config, "job": {**SMALL, "loss": "logits_to_keep", **job}, "options": options}

    for model, config, own in FAMILIES[:7]:
        for job in (OFF, FULL):
            yield case(model, config, {**own, **job}, {})
    for job, options in OF_LLAMA:
        yield case("llama-3.2-1b", {LAYERS: 6}, job, options)
    for job, options in IN_ONE_ROW:
        yield case("llama-3.2-1b", {LAYERS: 6}, {**job, **ROW}, options)
    for job, options in OF_OLDER:
        yield {"trl": OLDER, **case("llama-3.2-1b", {LAYERS: 6}, job, options)}
    yield case("qwen2.5-7b", {}, {**FULL, **MODEL, "sequence_length": 2048, "prompt_length": 512}, {})


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.swift_grpo_trace import SwiftGrpoRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        traced = SwiftGrpoRun(model_of(row), job, card_of(GPU), "grpo", job.prompt_length or 0, **row["options"])
        return traced.go()

    version = OLDER if find_spec("swift.rl_core") is None else VERSION
    every = ({"trl": VERSION, **case} for case in cases())
    add_missing(RUNS, (case for case in every if case["trl"] == version), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
