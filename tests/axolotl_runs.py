"""Runs of TRL 1.9's trainers with axolotl 0.19's kernels of log-probabilities, in tests/axolotl_runs.jsonl.

`python -m tests.axolotl_runs FOLDER/trl-1.9.0 FOLDER` runs those that the file lacks, on fake tensors, and adds the
peak of live tensors in each phase, in bytes; the second folder is axolotl's wheel, unpacked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_grpo import SMALL as GRPO
from tests.trl_runs import FULL, GPU, LAYERS, SMALL

RUNS = Path(__file__).parent / "axolotl_runs.jsonl"
LLAMA: tuple[str, dict[str, Any]] = ("llama-3.2-1b", {LAYERS: 6})
QWEN: tuple[str, dict[str, Any]] = ("qwen2.5-0.5b", {LAYERS: 6})
LONG = {"sequence_length": 1024, "micro_batch_size": 4}
JOBS: tuple[tuple[tuple[str, dict[str, Any]], dict[str, Any]], ...] = (
    (LLAMA, {"task": "dpo"}),
    (LLAMA, {"task": "dpo", "autocast": "none", "prompt_length": 100}),
    (LLAMA, {"task": "dpo", "micro_batch_size": 1, "checkpointing": "none"}),
    (QWEN, {"task": "dpo", **FULL, **LONG}),
    (LLAMA, {"task": "kto"}),
    (QWEN, {"task": "kto", "autocast": "none", **LONG}),
    (LLAMA, {"task": "orpo"}),
    (QWEN, {"task": "orpo", **FULL, **LONG}),
    (LLAMA, {"task": "cpo", "autocast": "none"}),
    (LLAMA, {"task": "simpo", "micro_batch_size": 1}),
    (LLAMA, GRPO),
    (QWEN, {**GRPO, **FULL, **LONG}),
    (LLAMA, {**GRPO, "autocast": "none", "sequence_length": 1024}),
    (LLAMA, {**GRPO, "checkpointing": "none", "micro_batch_size": 4}),
    (LLAMA, {**GRPO, "reference": "frozen_adapters"}),
    (QWEN, {**GRPO, **LONG, "reference": "frozen_adapters"}),
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for (model, config), job in JOBS:
        own = {**SMALL, **job, "loss": "axolotl_log_probs"}
        yield {"model": model, "config": config, "job": own}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks."""
    trl, axolotl = map(Path, sys.argv[1:])
    sys.path.insert(0, str(trl))
    from tests.axolotl_trace import replace_functions, traced

    replace_functions(axolotl)
    add_missing(RUNS, cases(), lambda row: traced(model_of(row), job_of(row), card_of(GPU)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
