"""Runs of TRL's GRPOTrainer and RLOOTrainer on fake tensors, in tests/trl_grpo_runs.jsonl: they score and train.

`python -m tests.trl_grpo` runs those that the file lacks (needs trl 1.16) and adds the peak of live tensors in each
phase, in bytes; `python -m tests.trl_grpo FOLDER/trl-1.12.0` takes the package of an older version from a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS, TRL

RUNS = Path(__file__).parent / "trl_grpo_runs.jsonl"
SMALL: dict[str, Any] = {
    "task": "grpo",
    "sequence_length": 256,
    "prompt_length": 64,
    "micro_batch_size": 2,
    "num_generations": 2,
    "generate_with": "vllm_server",
    "importance_sampling": False,
    "batches": "padded",
}
"""Completions come from elsewhere, so that scoring and training are all that there is."""
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"reference": "adapters_off"},
    {"reference": "adapters_off", "gradient_accumulation_steps": 4},
    {"checkpointing": "none"},
    {"checkpointing": "none", "reference": "adapters_off", "micro_batch_size": 4},
    {**FULL, "dtype": "fp32"},
    {**FULL, "dtype": "fp32", "autocast": "none"},
    {"autocast": "none"},
    {"autocast": "none", "reference": "adapters_off"},
    {"attention": "eager"},
    {"attention": "flash"},
    {"sequence_length": 4096, "prompt_length": 512},
    {"sequence_length": 2048, "prompt_length": 1536, "micro_batch_size": 6},
    {"lora_rank": 64, "lora_targets": ("q_proj", "v_proj")},
    {"reentrant": True},
    {**FULL, "gradient_accumulation_steps": 2, "optimizer": "adafactor"},
)
RLOO: dict[str, Any] = {"task": "rloo", "importance_sampling": True}
OF_RLOO: tuple[dict[str, Any], ...] = (
    {},
    {"reference": "none"},
    FULL,
    {**FULL, "reference": "none", "gradient_accumulation_steps": 4},
    {"checkpointing": "none", "micro_batch_size": 4},
    {"autocast": "none"},
    {"attention": "flash", "sequence_length": 2048, "prompt_length": 512},
)
OF_LIGER: tuple[dict[str, Any], ...] = (
    {},
    {"reference": "adapters_off"},
    {"checkpointing": "none", "micro_batch_size": 4},
    {**FULL, "micro_batch_size": 4, "gradient_accumulation_steps": 2},
    {**FULL, "dtype": "fp32", "sequence_length": 4096, "prompt_length": 512},
)
OLDER, IN_PLACE = "1.12.0", "1.9.0"
OF_IN_PLACE: tuple[dict[str, Any], ...] = (
    {"reference": "adapters_off"},
    {**FULL, "sequence_length": 1024},
    {"autocast": "none", "sequence_length": 1024, "reference": "adapters_off"},
    {"checkpointing": "none", "micro_batch_size": 4},
    RLOO,
    {**RLOO, **FULL, "reference": "none", "gradient_accumulation_steps": 4},
)


def cases(loss: str) -> Iterator[dict[str, Any]]:
    """All runs of a version, whose loss is this: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:9] if loss == "standard" else FAMILIES:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**SMALL, "loss": loss, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**SMALL, "loss": loss, **job}}
    yield {"model": "qwen2.5-7b", "config": {}, "job": {**SMALL, "loss": loss, "sequence_length": 2048, **FULL}}
    for model in ("llama-3.2-1b", "qwen2.5-0.5b") if loss == "standard" else ():
        for job in OF_LIGER:
            yield {"model": model, "config": {LAYERS: 6}, "job": {**SMALL, **job, "loss": "liger"}}
    for job in OF_RLOO:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**SMALL, "loss": loss, **RLOO, **job}}


def in_place_cases() -> Iterator[dict[str, Any]]:
    """Runs of a version that divides logits by the temperature where they lie."""
    for model in ("llama-3.2-1b", "qwen2.5-0.5b"):
        for job in OF_IN_PLACE:
            yield {"model": model, "config": {LAYERS: 6}, "job": {**SMALL, "loss": "divided_in_place", **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks of this version."""
    version = Path(sys.argv[1]).name.removeprefix("trl-") if len(sys.argv) > 1 else TRL
    sys.path[:0] = sys.argv[1:]
    from tests.trl_grpo_trace import GrpoRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return GrpoRun(model_of(row), job, card_of(GPU), str(job.task), job.prompt_length or 0).go()

    own = in_place_cases() if version == IN_PLACE else cases("standard" if version == OLDER else "chunked")
    add_missing(RUNS, ({"trl": version, **case} for case in own), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
