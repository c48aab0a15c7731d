"""Runs of verl's own FSDP engine of models that see on two emulated GPUs, in tests/verl_seeing_runs.jsonl.

`python -m tests.verl_seeing` runs those that the file lacks, as `tests.verl_sharing` does, with transformers 5.9, which
verl 0.9.1 asks for, in front of others in PYTHONPATH. It adds rank 0's peak of bytes in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.matrix_cases import seeing_job
from tests.recorded_runs import rows_of
from tests.trl_sharing import record_missing
from tests.verl_sharing import FSDP1, FSDP2, JOB, VERL, VERSION

RUNS = Path(__file__).parent / "verl_seeing_runs.jsonl"
SIZE: dict[str, Any] = {"images": 1, "image_size": (500, 400)}
TRAINED: dict[str, Any] = {"vision": "train", "projector": "train"}
FROZEN: dict[str, Any] = {"vision": "frozen", "projector": "frozen"}
ADAPTED: dict[str, Any] = {"method": "lora", "vision": "lora", "projector": "lora"}
PADDED: dict[str, Any] = {"batches": "padded", "verl": {**VERL, "joins_rows": True}}
OF_BOTH: tuple[dict[str, Any], ...] = (
    {},
    {"fsdp": FSDP1, "verl": {**VERL, "keeps_root": True}},
    {"micro_batch_size": 1},
    PADDED,
)
OF_QWEN2_5: tuple[dict[str, Any], ...] = (
    {"checkpointing": "none"},
    {"method": "lora", **FROZEN},
    ADAPTED,
    FROZEN,
    {"reference": "model", "verl": {**VERL, "entropy": True}},
)
UNTIED: tuple[dict[str, Any], ...] = ({}, {"fsdp": FSDP1, "verl": {**VERL, "keeps_root": True}})


def case(family: str, own: dict[str, Any], tied: bool = True) -> dict[str, Any]:
    """A run in which each sample's image and some text are its prompt."""
    job = {**JOB, "fsdp": FSDP2, "micro_batch_size": 8, **SIZE, **TRAINED, **own}
    length = seeing_job(family, **SIZE).sequence_length
    return {
        "version": VERSION,
        "seeing": family,
        **({} if tied else {"changes": {"tie_word_embeddings": False}}),
        "job": {**job, "sequence_length": length, "prompt_length": length - 64},
    }


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the family of the model, keys of its configuration that are others, the job."""
    for family in ("qwen2_5_vl", "qwen3_vl"):
        yield from (case(family, own) for own in OF_BOTH)
        yield from (case(family, own, tied=False) for own in UNTIED)
    yield from (case("qwen2_5_vl", own) for own in OF_QWEN2_5)
    yield case("qwen2_vl", {})
    large = {**PADDED, "micro_batch_size": 4, "verl": {**PADDED["verl"], "entropy": True}}
    yield {**case("qwen2_5_vl", large), "vocabulary": 64000}
    yield {**case("qwen2_5_vl", {"verl": {**VERL, "fused_head": "torch"}}), "vocabulary": 64000}
    yield case("qwen2_5_vl", {"method": "lora", **FROZEN, "fsdp": FSDP1, "verl": {**VERL, "keeps_root": True}})


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.verl_seeing_run"))
