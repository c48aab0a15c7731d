"""Runs of ms-swift's DPO and KTO trainers under ZeRO-3 on emulated GPUs, in tests/swift_sharing_runs.jsonl.

`python -m tests.swift_sharing` runs those that the file lacks: ms-swift 4.6 and trl 0.29.1 come before other versions
in PYTHONPATH, the rest is as `tests.trl_sharing` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.swift_runs import VERSION
from tests.trl_sharing import SHALLOW, SMALL, STRATEGIES, record_missing

RUNS = Path(__file__).parent / "swift_sharing_runs.jsonl"


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for task in ("dpo", "kto"):
        job = {**SMALL, "task": task, "loss": "logits_to_keep", "method": "full", **STRATEGIES["zero3"]}
        yield {"model": SHALLOW[0], "config": SHALLOW[1], "job": job}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), "tests.swift_sharing_run"))
