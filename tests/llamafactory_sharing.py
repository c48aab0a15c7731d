"""Runs of LLaMA-Factory's trainers under ZeRO and FSDP on emulated GPUs, in tests/llamafactory_sharing_runs.jsonl.

`LLAMAFACTORY=FOLDER python -m tests.llamafactory_sharing` runs those that the file lacks: `FOLDER` has the unpacked
package, trl 0.24 comes before other versions in PYTHONPATH, the rest is as `tests.trl_sharing` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.llamafactory_runs import LOSSES, VERSION
from tests.recorded_runs import rows_of
from tests.trl_sharing import SHALLOW, SHALLOW_UNTIED, SMALL, STRATEGIES, record_missing
from tests.trl_sharing import UNTIED as DEEPER_UNTIED

RUNS = Path(__file__).parent / "llamafactory_sharing_runs.jsonl"


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""

    def case(model: tuple[str, dict[str, Any]], strategy: str, method: str, task: str, **more: Any) -> dict[str, Any]:
        own: dict[str, Any] = {"task": task, "loss": LOSSES[task], "method": method, **STRATEGIES[strategy]}
        if (strategy, method) == ("zero3", "lora"):
            own["reentrant"] = True  # use_reentrant_gc
        if strategy.startswith("fsdp") and method == "full":
            own["dtype"] = "fp32"
        return {"model": model[0], "config": model[1], "job": {**SMALL, **own, **more}}

    for task in ("dpo", "kto"):
        for method in ("full", "lora"):
            yield case(SHALLOW, "zero3", method, task)
    yield case(SHALLOW, "zero3", "lora", "reward")  # full fine-tuning stops: DeepSpeed wants weights of one dtype
    yield case(SHALLOW_UNTIED, "zero3", "full", "dpo", gradient_accumulation_steps=2)
    yield case(SHALLOW_UNTIED, "zero3", "lora", "reward", gradient_accumulation_steps=2)
    yield case(DEEPER_UNTIED, "zero3", "lora", "reward", sequence_length=512)
    yield case(SHALLOW, "zero2", "full", "reward")
    for model in (SHALLOW, SHALLOW_UNTIED):
        yield case(model, "fsdp2", "lora", "reward")
    for strategy in ("fsdp2", "fsdp1"):
        yield case(SHALLOW, strategy, "lora", "dpo")
    yield case(SHALLOW, "fsdp2", "lora", "kto")


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(
        record_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), "tests.llamafactory_sharing_run")
    )
