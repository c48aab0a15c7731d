"""Runs of TRL's trainers under ZeRO and FSDP on emulated GPUs, in tests/trl_sharing_runs.jsonl.

`python -m tests.trl_sharing` runs those that the file lacks, where PyTorch's CUDA build, trl 1.16 and DeepSpeed 0.19
are installed and `vramplan emulate --install` was run. It adds rank 0's peak of bytes in each phase.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import add_missing, rows_of
from tests.trl_runs import LAYERS, TRL

RUNS = Path(__file__).parent / "trl_sharing_runs.jsonl"
GPU = "a100-80gb"
LIMIT_S = 400
SMALL: dict[str, Any] = {"num_gpus": 2, "sequence_length": 256, "micro_batch_size": 2}
ZERO: dict[str, Any] = {"dtype": "bf16", "autocast": "none"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "zero3": {"strategy": "zero3", **ZERO},
    "zero2": {"strategy": "zero2", **ZERO},
    "fsdp2": {"strategy": "fsdp"},
    "fsdp1": {"strategy": "fsdp", "fsdp": {"version": 1}},
    "zero1": {"strategy": "zero1", **ZERO},
    "ddp": {"strategy": "ddp"},
}
BEFORE = "1.13.0"
"""A version of TRL whose losses take all logits; its runs need it before others in PYTHONPATH."""
TIED = ("llama-3.2-1b", {LAYERS: 6})
UNTIED = ("llama-3.2-1b", {LAYERS: 6, "tie_word_embeddings": False})
SHALLOW = ("llama-3.2-1b", {LAYERS: 4})
SHALLOWEST = ("llama-3.2-1b", {LAYERS: 3})
SHALLOWEST_UNTIED = ("llama-3.2-1b", {LAYERS: 3, "tie_word_embeddings": False})
SHALLOW_UNTIED = ("llama-3.2-1b", {LAYERS: 4, "tie_word_embeddings": False})


def _job(strategy: str, method: str, task: str | None, **more: Any) -> dict[str, Any]:
    loss = "chunked" if task in (None, "dpo", "kto") else "standard"
    own = {} if task is None else {"task": task}
    stored: dict[str, Any] = {"dtype": "fp32"} if method == "full" and "zero" not in strategy else {}
    if (strategy, method) == ("zero3", "lora"):  # what TRL makes of adapters there
        stored = {"lora_dtype": "bf16"} | ({} if more.get("checkpointing") == "none" else {"reentrant": True})
    return {**SMALL, **own, "loss": loss, "method": method, **STRATEGIES[strategy], **stored, **more}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""

    def case(model: tuple[str, dict[str, Any]], *job: Any, **more: Any) -> dict[str, Any]:
        return {"model": model[0], "config": model[1], "job": _job(*job, **more)}

    for strategy in ("zero2", "fsdp1"):
        for method in ("full", "lora"):
            yield case(UNTIED, strategy, method, "dpo")
    for strategy in ("zero2", "fsdp1", "zero1", "ddp"):
        for method in ("full", "lora"):
            yield case(TIED, strategy, method, "dpo")
    for task in ("kto", "reward", "orpo"):
        for method in ("full", "lora"):
            yield case(UNTIED if task == "orpo" else TIED, "zero2", method, task)
    for model in (SHALLOW_UNTIED, SHALLOW):
        for strategy in ("zero3", "fsdp2"):
            for method in ("full", "lora"):
                for checkpointing in ({}, {"checkpointing": "none"}):
                    yield case(model, strategy, method, None, **checkpointing)
        yield case(model, "fsdp2", "lora", None, dtype="fp32")
        for method in ("full", "lora"):
            for task in ("dpo", "kto", *(("reward",) if model is SHALLOW else ())):
                yield case(model, "zero3", method, task)
                if task != "reward":
                    yield case(model, "fsdp2", method, task)
    for strategy in ("fsdp2", "fsdp1"):
        for method in ("lora", "full"):
            yield case(SHALLOW, strategy, method, "reward")
    yield case(SHALLOW, "fsdp2", "full", "reward", sequence_length=2048, micro_batch_size=4)
    yield {"trl": BEFORE, **case(SHALLOWEST_UNTIED, "fsdp2", "lora", "dpo", loss="standard")}
    yield {"trl": BEFORE, **case(SHALLOWEST, "fsdp2", "full", "kto", loss="standard")}
    yield case(SHALLOW_UNTIED, "zero3", "lora", None, zero={"max_reuse_distance": 1})
    yield case(SHALLOW_UNTIED, "zero3", "full", "dpo", checkpointing="none")
    yield case(SHALLOW, "zero3", "full", "dpo", reference="precomputed")
    yield case(SHALLOWEST_UNTIED, "zero3", "lora", "kto")
    for method in ("full", "lora"):
        yield case(SHALLOW_UNTIED, "zero3", method, "dpo", gradient_accumulation_steps=2)
    for model, method, task, steps in (
        (SHALLOW, "full", None, 1),
        (SHALLOW, "full", None, 4),
        (SHALLOW_UNTIED, "lora", None, 4),
        (SHALLOW_UNTIED, "full", "dpo", 2),
    ):
        yield case(model, "zero1", method, task, zero={"overlap_comm": True}, gradient_accumulation_steps=steps)
    yield case(SHALLOW_UNTIED, "fsdp2", "full", None, optimizer="adamw_torch")


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def run(row: dict[str, Any], module: str = "tests.trl_sharing_run") -> dict[str, int]:
    """The peaks of a row's job, one rank of which is the module's program.

    Raises:
        RuntimeError: with the end of what the run wrote, if it has none.
    """
    gpus = str(row["job"]["num_gpus"])
    inside = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", gpus]
    command = [sys.executable, "-m", "vramplan", "emulate", "--gpu", GPU, "--num-gpus", gpus, "--", *inside]
    program = ["-m", module, json.dumps(row)]
    done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = re.search(r"^PEAKS (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(done.stderr[-6000:])
    peaks: dict[str, int] = json.loads(found[1])
    return peaks


def record_missing(runs: Path, cases: Iterable[dict[str, Any]], module: str = "tests.trl_sharing_run") -> int:
    """Run what a file of runs lacks, by the program of a module."""

    def peaks_of(row: dict[str, Any]) -> dict[str, int] | None:
        try:
            return run(row, module)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(row, error, file=sys.stderr, flush=True)
            return None

    add_missing(runs, cases, peaks_of)
    return 0


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, ({"trl": TRL, **case} for case in cases())))
