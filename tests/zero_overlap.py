"""Runs of ZeRO 1 and 2 with overlap_comm on emulated GPUs, in tests/zero_overlap_runs.jsonl.

`python -m tests.zero_overlap` runs those that the file lacks (see tests/emulated.py for what it needs).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.emulated import run
from tests.emulated_server import Server
from tests.recorded_runs import rows_of

RUNS = Path(__file__).with_name("zero_overlap_runs.jsonl")


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, the GPU, the job."""

    def case(name: str, model: str, bucket: int | None = 20_000_000, **job: Any) -> dict[str, Any]:
        zero = {"overlap_comm": True} | ({} if bucket is None else {"reduce_bucket_size": bucket})
        common = {"num_gpus": 2, "sequence_length": 512, "micro_batch_size": 1, "checkpointing": "full", "zero": zero}
        return {"name": name, "model": model, "gpu": "a100-80gb", "job": common | job}

    small, larger = "qwen2.5-0.5b", "llama-3.2-1b"
    for method in ("full", "lora"):
        for steps in (1, 4):
            job: dict[str, Any] = {"method": method, "gradient_accumulation_steps": steps}
            yield case(f"zero1 {method} {steps}", small, strategy="zero1", **job)
    yield case("zero2 full 1", small, strategy="zero2", method="full")
    yield case("zero2 lora 1", small, strategy="zero2", method="lora")
    yield case("zero2 full 4", small, strategy="zero2", method="full", gradient_accumulation_steps=4)
    many: dict[str, Any] = {"num_gpus": 3, "checkpointing": "none", "gradient_accumulation_steps": 4}
    yield case("zero1 small bucket", small, 5_000_000, strategy="zero1", method="full", **many)
    lora: dict[str, Any] = {"num_gpus": 4, "method": "lora", "gradient_accumulation_steps": 4}
    yield case("zero1 lora, auto bucket", larger, None, strategy="zero1", **lora)
    yield case("zero1 auto bucket", larger, None, strategy="zero1", method="full", gradient_accumulation_steps=2)


def main() -> int:
    """Run what the file lacks."""
    known, server = {row["name"] for row in rows_of(RUNS)}, Server()
    for case in cases():
        if case["name"] not in known:
            found = run(server, case)
            with RUNS.open("a") as file:
                file.write(json.dumps(case | found) + "\n")
            print(case["name"], file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
