"""Runs of TRL's GKDTrainer on two emulated GPUs, in tests/trl_gkd_sharing_runs.jsonl.

`python -m tests.trl_gkd_sharing` runs those that the file lacks (see `tests.trl_sharing` for what that needs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS, TRL
from tests.trl_sharing import SMALL, STRATEGIES, record_missing

RUNS = Path(__file__).parent / "trl_gkd_sharing_runs.jsonl"
SMOLLM = "smollm2-135m", "HuggingFaceTB/SmolLM2-360M"
LLAMA = "llama-3.2-1b", "meta-llama/Llama-3.2-1B"


def _case(strategy: str, method: str, models: tuple[str, str] = SMOLLM, **more: Any) -> dict[str, Any]:
    student, teacher = models
    stored: dict[str, Any] = (
        {"lora_dtype": "bf16", "reentrant": True} if (strategy, method) == ("zero3", "lora") else {}
    )
    own = {"task": "gkd", "teacher": teacher, "batches": "padded", "generated_by": "none", "loss": "standard"}
    job = {**SMALL, **own, "method": method, **STRATEGIES[strategy], **stored, **more}
    return {"trl": TRL, "model": student, "config": {LAYERS: 6}, "job": job}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the student, keys of its configuration, the job with its teacher."""
    for method in ("lora", "full"):
        for strategy in ("zero3", "zero2"):
            yield _case(strategy, method)
    yield _case("zero3", "full", LLAMA, divergence="reverse_kl")
    yield _case("zero3", "lora", gradient_accumulation_steps=2, divergence="forward_kl")
    yield _case("zero3", "full", checkpointing="none")
    yield _case("ddp", "lora")
    yield _case("zero1", "full", prompt_length=100)
    tiles = {"loss": "chunked", "autocast": "none"}
    yield _case("zero2", "full", **tiles)
    yield _case("ddp", "lora", **tiles)
    yield _case("ddp", "full", LLAMA, dtype="bf16", prompt_length=100, **tiles)


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.trl_gkd_sharing_run"))
