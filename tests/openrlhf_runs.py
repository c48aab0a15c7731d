"""The runs of OpenRLHF's own trainers on fake tensors that the tape is compared with, in tests/openrlhf_runs.jsonl.

`python -m tests.openrlhf_runs FOLDER` runs those that the file lacks; `FOLDER` has the unpacked package (0.11.2), whose
DeepSpeed has to be installed. It adds the peak of live tensors in each phase, in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FAMILIES, FULL, GPU, LAYERS

RUNS = Path(__file__).parent / "openrlhf_runs.jsonl"
VERSION = "OpenRLHF 0.11.2"
OF_REWARD = "OpenRLHF 3c3be62"
"""That of the runs of reward models: the commit of August 2026."""
OWN: dict[str, Any] = {
    "loss": "kept_log_probs", "loop": "plain", "dtype": "bf16", "autocast": "none", "lora_dtype": "bf16",
    "optimizer": "adamw_torch_fused", "batches": "padded", "sequence_length": 256, "micro_batch_size": 2,
}  # fmt: skip
DPO: dict[str, Any] = {"task": "dpo", "reference": "model"}
REWARD: dict[str, Any] = {"task": "reward"}
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"micro_batch_size": 1},
    {"gradient_accumulation_steps": 2},
    {**FULL, "gradient_accumulation_steps": 4, "micro_batch_size": 4},
    {"checkpointing": "none"},
    {**FULL, "checkpointing": "none"},
    {"reentrant": True},
    {**DPO, **FULL, "checkpointing": "none"},
    {**DPO, "gradient_accumulation_steps": 2, "sequence_length": 512},
)
"""Jobs on Llama."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for model, config, own in FAMILIES[:7]:
        for job in ({}, FULL, DPO, {**DPO, **FULL}):
            yield {"model": model, "config": config, "job": {**OWN, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **job}}
    for model, config, own in FAMILIES[:7]:
        for job in (REWARD, {**REWARD, **FULL}):
            yield {"model": model, "config": config, "job": {**OWN, **own, **job}}
    for job in ({"checkpointing": "none"}, {"gradient_accumulation_steps": 2}, {"micro_batch_size": 4, **FULL}):
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**OWN, **REWARD, **job}}
    for job in ({}, DPO, REWARD):
        whole = {**OWN, "sequence_length": 2048, **job}
        yield {"model": "llama-3.1-8b", "config": {}, "job": whole}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    from tests.openrlhf_trace import OpenRlhfRun, load

    classes = load(Path(sys.argv[1]))

    def run(row: dict[str, Any]) -> dict[str, int]:
        return OpenRlhfRun(classes, model_of(row), job_of(row), card_of(GPU)).go()

    def versioned(case: dict[str, Any]) -> dict[str, Any]:
        return {"version": OF_REWARD if case["job"].get("task") == "reward" else VERSION, **case}

    add_missing(RUNS, map(versioned, cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
