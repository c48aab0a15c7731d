"""Runs of OpenRLHF's actor and critic on fake tensors that the tape is compared with: tests/openrlhf_actor_runs.jsonl.

`python -m tests.openrlhf_actor_runs FOLDER` runs those that the file lacks; `FOLDER` has the unpacked package, whose
DeepSpeed has to be installed. It adds the peak of live tensors in each phase, in bytes. The model is whole: what
DeepSpeed makes of its weights is that of other runs (tests/test_sharing.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "openrlhf_actor_runs.jsonl"
VERSION = "OpenRLHF 3c3be62"
"""The commit of August 2026."""
OWN: dict[str, Any] = {
    "task": "grpo", "loss": "kept_log_probs", "loop": "plain", "dtype": "bf16", "autocast": "none",
    "lora_dtype": "bf16", "optimizer": "adamw_torch_fused", "batches": "padded", "sequence_length": 256,
    "prompt_length": 64, "micro_batch_size": 2, "generate_with": "vllm_server",
}  # fmt: skip
PACKED: dict[str, Any] = {"batches": "unpadded", "attention": "flash"}
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {**FULL, "gradient_accumulation_steps": 4},
    {**FULL, "checkpointing": "none"},
    {**FULL, "micro_batch_size": 1, "openrlhf": {"scored_samples": 4}},
    {**FULL, "micro_batch_size": 4, "openrlhf": {"divides_logits": True}},
    {**FULL, "openrlhf": {"kl_loss": True}},
    {**FULL, "reference": "model"},
    {**PACKED, **FULL},
    {**PACKED, "micro_batch_size": 4, "gradient_accumulation_steps": 2},
    {**PACKED, **FULL, "checkpointing": "none", "openrlhf": {"divides_logits": True, "kl_loss": True}},
    {"reentrant": True, **FULL},
    {**FULL, "openrlhf": {"entropy_loss": True}},
    {"micro_batch_size": 8, "openrlhf": {"entropy_loss": True}},
    {"micro_batch_size": 8, "openrlhf": {"divides_logits": True}},
    {"micro_batch_size": 8, "gradient_accumulation_steps": 2, "openrlhf": {"kl_loss": True}, "reference": "model"},
    {**FULL, **PACKED, "checkpointing": "none", "openrlhf": {"entropy_loss": True, "kl_loss": True}},
)
"""Jobs on Llama."""


CRITIC: dict[str, Any] = {"openrlhf": {"trains": "critic"}}
OF_CRITICS: tuple[dict[str, Any], ...] = (
    {**FULL, "gradient_accumulation_steps": 4},
    {**FULL, "checkpointing": "none"},
    {**FULL, "micro_batch_size": 1, "openrlhf": {"trains": "critic", "scored_samples": 4}},
    {**FULL, **PACKED, "micro_batch_size": 4},
)
"""Jobs of a critic on Llama."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:7]:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**OWN, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **job}}
    for model, config, own in FAMILIES[:7]:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**OWN, **own, **CRITIC, **job}}
    for job in OF_CRITICS:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **CRITIC, **job}}
    yield {"model": "qwen2.5-3b", "config": {}, "job": {**OWN, **FULL, **PACKED, "sequence_length": 4096}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.openrlhf_actor_trace import OpenRlhfActorRun, load_actor

    classes = load_actor(Path(sys.argv[1]))

    def run(row: dict[str, Any]) -> dict[str, int]:
        return OpenRlhfActorRun(classes, model_of(row), job_of(row), card_of(GPU)).go()

    add_missing(RUNS, ({"version": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
