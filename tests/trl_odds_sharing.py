"""Runs of TRL's ORPO, CPO and SimPO under ZeRO and FSDP on emulated GPUs, in tests/trl_odds_sharing_runs.jsonl.

`python -m tests.trl_odds_sharing` runs those that the file lacks (see `tests.trl_sharing` for what that needs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS, TRL
from tests.trl_sharing import SMALL, STRATEGIES, record_missing

RUNS = Path(__file__).parent / "trl_odds_sharing_runs.jsonl"
LLAMA = "llama-3.2-1b"
TIED: dict[str, Any] = {LAYERS: 3}
UNTIED: dict[str, Any] = {LAYERS: 3, "tie_word_embeddings": False}


def _case(strategy: str, method: str, task: str, config: dict[str, Any] = TIED, **more: Any) -> dict[str, Any]:
    stored = {"dtype": "fp32"} if method == "full" and "zero" not in strategy else {}
    if (strategy, method) == ("zero3", "lora"):  # TRL's autocast_adapter_dtype=False
        stored = {"lora_dtype": "bf16"}
    job = {**SMALL, "task": task, "loss": "fused_log_probs", "method": method, **STRATEGIES[strategy], **stored, **more}
    return {"trl": TRL, "model": LLAMA, "config": config, "job": job}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for method in ("lora", "full"):
        for strategy in ("zero3", "fsdp2", "zero2", "fsdp1", "zero1"):
            yield _case(strategy, method, "orpo")
        yield _case("zero3", method, "cpo", UNTIED)
        yield _case("fsdp2", method, "simpo", UNTIED)
    yield _case("zero3", "full", "simpo", checkpointing="none")
    yield _case("fsdp2", "lora", "orpo", UNTIED, checkpointing="none")
    yield _case("zero3", "lora", "orpo", gradient_accumulation_steps=2)
    yield _case("zero2", "full", "cpo", UNTIED, gradient_accumulation_steps=2)


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases()))
