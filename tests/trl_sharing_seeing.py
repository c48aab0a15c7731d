"""Runs of TRL's trainers of models that see under ZeRO-3 and FSDP 2, in tests/trl_sharing_seeing_runs.jsonl.

`python -m tests.trl_sharing_seeing` runs those that the file lacks, as `tests.trl_sharing` does, and adds rank 0's peak
of bytes in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_seeing_runs import WHOLE, case
from tests.trl_sharing import STRATEGIES, record_missing

RUNS = Path(__file__).parent / "trl_sharing_seeing_runs.jsonl"
FAMILIES = ("qwen2_5_vl", "llava")
SCORED: dict[str, Any] = {"task": "grpo", "importance_sampling": True}


def _shared(strategy: str, method: str) -> dict[str, Any]:
    stored: dict[str, Any] = {"dtype": "fp32"} if method == "full" and strategy == "fsdp2" else {}
    if (strategy, method) == ("zero3", "lora"):
        stored = {"lora_dtype": "bf16", "reentrant": True}
    return {"num_gpus": 2, "method": method, **STRATEGIES[strategy], **stored}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the family of the model, and the job."""
    for family in FAMILIES:
        for strategy in ("zero3", "fsdp2"):
            yield case(family, {"task": "dpo", **WHOLE, **_shared(strategy, "full")})
            yield case(family, {"task": "dpo", **_shared(strategy, "lora")})
            yield case(family, {**SCORED, **WHOLE, **_shared(strategy, "full")})
        yield case(family, {"task": "kto", **_shared("zero3", "lora")})
        yield case(family, {**SCORED, **_shared("zero3", "lora")})


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.trl_sharing_seeing_run"))
