"""Runs of ms-swift's trainers under ZeRO-3, most with images, on emulated GPUs, in tests/swift_sharing_runs.jsonl.

`python -m tests.swift_sharing` runs those that the file lacks, as `tests.trl_sharing` does, where ms-swift 4.6 and trl
0.29.1 are installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.swift_runs import VERSION
from tests.trl_runs import LAYERS
from tests.trl_seeing_runs import WHOLE, case
from tests.trl_sharing import SHALLOW, SHALLOWEST, SMALL, STRATEGIES, record_missing

RUNS = Path(__file__).parent / "swift_sharing_runs.jsonl"
LOSS = "logits_to_keep"
STUDENT, TEACHER = "smollm2-135m", "HuggingFaceTB/SmolLM2-360M"
SHARED: dict[str, Any] = {"num_gpus": 2, **STRATEGIES["zero3"], "reentrant": True}
GRPO: dict[str, Any] = {"task": "grpo", "importance_sampling": True, "zero": {"prefetch_bucket_size": 0}}
"""Without prefetching, which GRPOConfig sets under ZeRO-3 (rlhf_trainers/arguments.py)."""
BESIDE: dict[str, Any] = {"generate_with": "vllm_sleep", "rollout_offload": "all", "vllm_share": 0.05}
"""vLLM beside the training, which takes no memory in these runs, while the model waits in host memory."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, or the family of one that sees, and the job."""
    for task in ("dpo", "kto"):
        text = {**SMALL, "task": task, "loss": LOSS, "method": "full", **STRATEGIES["zero3"]}
        yield {"trl": VERSION, "model": SHALLOW[0], "config": SHALLOW[1], "job": text}
    for method, more in (("full", {}), ("lora", {}), ("full", {"adds_cross_entropy": True})):
        own = {"task": "gkd", "teacher": TEACHER, "generated_by": "none", "batches": "padded", "loss": LOSS}
        job = {**SMALL, **SHARED, **own, "method": method, **more}
        yield {"trl": VERSION, "model": STUDENT, "config": {LAYERS: 6}, "job": job}
    yield from _sent()
    taught = {"task": "gkd", "teacher": TEACHER, "generated_by": "none", "batches": "padded", "loss": LOSS}
    row = {"trl": VERSION, "model": STUDENT, "config": {LAYERS: 6}}
    waits = {"teacher_deepspeed": "zero3_offload"}  # which leaves the teacher's shares on the GPUs
    yield {**row, "job": {**SMALL, **SHARED, **taught, "method": "full"}, "options": waits}
    for job in ({"task": "dpo"}, GRPO):
        for method, parts in (("full", {}), ("full", WHOLE), ("lora", {})):
            row = case("qwen2_5_vl", {**SHARED, "method": method, **job, **parts}, LOSS)
            yield {**row, "trl": VERSION}


def _sent() -> Iterator[dict[str, Any]]:
    """Runs whose weights go to vLLM's server, or are handed to one beside the training."""
    own = {**SMALL, **GRPO, "num_gpus": 2, "prompt_length": 64, "num_generations": 2, "loss": LOSS, "batches": "padded"}
    own |= {"generate_with": "vllm_server", "vllm_sync_parts": 1}
    waits = {**own, **SHARED, "offload": "all"}
    small, large = (STUDENT, {LAYERS: 6}), SHALLOWEST
    for (model, config), job in (
        (small, {**waits, "method": "full", "reference": "model"}),
        (large, {**waits, "method": "lora"}),
        (small, {**waits, **BESIDE, "method": "full", "reference": "model"}),
        (large, {**waits, **BESIDE, "method": "lora"}),
        (large, {**own, **SHARED, "method": "full", "vllm_sync_parts": 3}),
        (large, {**own, **STRATEGIES["zero2"], "method": "lora", "reentrant": True}),
        (small, {**own, **STRATEGIES["zero2"], "method": "full", "offload": "optimizer", "reentrant": True}),
    ):
        yield {"trl": VERSION, "model": model, "config": config, "job": job}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.swift_sharing_run"))
