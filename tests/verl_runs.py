"""The runs of verl's own actor and critic on fake tensors that the tape is compared with, in tests/verl_runs.jsonl.

`python -m tests.verl_runs FOLDER` runs those that the file lacks; `FOLDER` has the unpacked package (0.7.1), for which
ray, tensordict, omegaconf, hydra and codetiming have to be installed. It adds the peak of live tensors in each phase,
in bytes. The model is whole: what FSDP makes of its weights is that of other runs (tests/test_sharing.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "verl_runs.jsonl"
VERSION = "verl 0.7.1"
OWN: dict[str, Any] = {
    "task": "grpo", "loss": "log_probs", "loop": "plain", "dtype": "bf16", "autocast": "none", "lora_dtype": "bf16",
    "optimizer": "adamw_torch", "batches": "packed", "attention": "flash", "sequence_length": 1024, "prompt_length": 64,
    "generate_with": "vllm_server", "verl": {"logits": "in_place"},
}  # fmt: skip
MORE = {"logits": "in_place", "scored_tokens": 2048}
ENTROPY = {"logits": "in_place", "entropy": True}


def critic(**changes: Any) -> dict[str, Any]:
    """Settings with a critic of the actor's model, in bf16: nothing casts weights that are not sharded."""
    own = {"dtype": "bf16", "batches": "packed", "sequence_length": 1024, "scored_tokens": 1024}
    return {"logits": "in_place", "critic": {**own, **changes}}


OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"gradient_accumulation_steps": 2},
    {**FULL, "gradient_accumulation_steps": 4, "sequence_length": 2048},
    {**FULL, "checkpointing": "none"},
    {"checkpointing": "none", "verl": MORE},
    {**FULL, "verl": MORE},
    {**FULL, "checkpointing": "none", "verl": ENTROPY},
    {"gradient_accumulation_steps": 2, "sequence_length": 4096, "verl": ENTROPY},
    {**FULL, "verl": critic(sequence_length=4096, scored_tokens=8192, gradient_accumulation_steps=2)},
    {"verl": critic(checkpointing="none", sequence_length=8192, scored_tokens=8192)},
    {**FULL, "verl": critic(batches="padded", sequence_length=256, micro_batch_size=16, checkpointing="none")},
)
"""Jobs on Llama."""
PADDED: dict[str, Any] = {
    **OWN, "batches": "padded", "sequence_length": 384, "prompt_length": 128, "micro_batch_size": 4,
}  # fmt: skip
OF_PADDED: tuple[dict[str, Any], ...] = (
    {},
    FULL,
    {**FULL, "checkpointing": "none", "gradient_accumulation_steps": 2},
    {**FULL, "micro_batch_size": 1, "gradient_accumulation_steps": 4, "sequence_length": 2048, "prompt_length": 1024},
    {"verl": {**ENTROPY, "scored_tokens": 8 * 384}},
    {**FULL, "verl": ENTROPY},
    {"micro_batch_size": 1, "sequence_length": 2048, "verl": ENTROPY},
    {**FULL, "verl": critic(batches="padded", sequence_length=384, micro_batch_size=8, scored_tokens=8 * 384)},
)
"""Jobs with padded rows."""
OF_SHARED: tuple[dict[str, Any], ...] = (
    {**FULL, "checkpointing": "none", "verl": {"logits": "in_place", "sequence_parallel": 2}},
    {"gradient_accumulation_steps": 2, "verl": {**ENTROPY, "sequence_parallel": 2, "scored_tokens": 2048}},
    {**FULL, "sequence_length": 4096, "verl": {"logits": "in_place", "sequence_parallel": 8}},
    {**FULL, "verl": {**critic(sequence_length=4096, scored_tokens=8192, sequence_parallel=4), "sequence_parallel": 4}},
)
"""Jobs whose micro-batches several GPUs share."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:7]:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**OWN, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **job}}
    yield {"model": "qwen2.5-3b", "config": {}, "job": {**OWN, **FULL, "sequence_length": 8192}}
    for model, config, own in FAMILIES[:7]:
        if not model.startswith("gemma-3"):  # which transformers has no class for
            yield {"model": model, "config": config, "job": {**OWN, **own, "verl": critic(sequence_length=4096)}}
    yield {"model": "qwen2.5-0.5b", "config": {LAYERS: 6}, "job": {**OWN, **FULL, "verl": ENTROPY}}
    for job in OF_SHARED:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **job}}
    for job in OF_PADDED:
        for model in ("llama-3.2-1b", "qwen2.5-0.5b"):
            yield {"model": model, "config": {LAYERS: 6}, "job": {**PADDED, **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.verl_trace import VerlRun, load

    classes = load(Path(sys.argv[1]))

    def run(row: dict[str, Any]) -> dict[str, int]:
        return VerlRun(classes, model_of(row), job_of(row), card_of(GPU)).go()

    add_missing(RUNS, ({"version": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
