"""Runs of TRL's trainers that get a model with adapters, of which they make a frozen copy for the reference.

`python -m tests.trl_frozen_adapters` adds those that tests/trl_frozen_adapters_runs.jsonl lacks (needs trl 1.16);
`python -m tests.trl_frozen_adapters FOLDER/trl-1.0.0` takes the package of an older version from a folder, and
`python -m tests.trl_frozen_adapters ms-swift` runs the trainers of ms-swift (see `tests.swift_runs`), whose frozen
adapters are those of --ref_adapters. Peaks of live tensors in each phase, in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import GPU, LAYERS, SMALL, TRL

RUNS = Path(__file__).parent / "trl_frozen_adapters_runs.jsonl"
LLAMA, QWEN = ("llama-3.2-1b", {LAYERS: 6}), ("qwen2.5-0.5b", {LAYERS: 6})
DPO: tuple[tuple[tuple[str, dict[str, Any]], dict[str, Any]], ...] = (
    (LLAMA, {}),
    (QWEN, {"lora_rank": 64}),
    (LLAMA, {"autocast": "none"}),
    (LLAMA, {"checkpointing": "none", "prompt_length": 100}),
    (LLAMA, {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "lora_targets": ("q_proj", "v_proj")}),
    (QWEN, {"dtype": "fp32", "sequence_length": 512}),
    (LLAMA, {"lora_dtype": "bf16"}),
)
"""Models and jobs of DPO; the last has adapters as TRL casts those of a quantized model, and not the copy."""
TWO_SETS = {"model_adapter_name": "default", "ref_adapter_name": "ref"}
"""Options of a script that loads both (up to 0.28)."""
SWIFT = "ms-swift 4.6.0"
SCORED: dict[str, Any] = {"task": "grpo", "num_generations": 2, "prompt_length": 128}


def cases(version: str) -> Iterator[dict[str, Any]]:
    """All runs of a version: the model, keys of its configuration, the job, TRL's options."""
    own = {**SMALL, "reference": "frozen_adapters"}
    if version == SWIFT:
        own |= {"loss": "logits_to_keep", "prompt_length": 100}
        for (model, config), job in ((LLAMA, {"task": "dpo"}), (QWEN, {"task": "dpo"}), (LLAMA, {"task": "kto"})):
            yield {"model": model, "config": config, "job": {**own, **job}, "options": {}}
        model, config = LLAMA
        yield {"model": model, "config": config, "job": {**own, **SCORED}, "options": {}}
        return
    losses = {TRL: "chunked", "1.9.0": "standard", "1.0.0": "sliced", "0.28.0": "concatenated_states"}
    loss, options = losses[version], TWO_SETS if version == "0.28.0" else {}
    for (model, config), job in DPO if version == TRL else DPO[:2]:
        row = {"model": model, "config": config, "job": {**own, "task": "dpo", "loss": loss, **job}}
        yield {**row, "options": options}
    if version in ("1.0.0", "0.28.0"):
        return
    for model, config in (LLAMA, QWEN)[: 2 if version == TRL else 1]:
        yield {"model": model, "config": config, "job": {**own, "task": "kto", "loss": loss}, "options": {}}
    if version != TRL:
        return
    for (model, config), job in ((LLAMA, {}), (QWEN, {"sequence_length": 1024}), (LLAMA, {"task": "rloo"})):
        yield {"model": model, "config": config, "job": {**own, **SCORED, "loss": loss, **job}, "options": {}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks of this version."""
    version = Path(sys.argv[1]).name.removeprefix("trl-") if len(sys.argv) > 1 else TRL
    version = SWIFT if version == "ms-swift" else version
    sys.path[:0] = [] if version == SWIFT else sys.argv[1:]

    from tests import trl_trace

    def trace_of(task: str) -> Any:
        if version == SWIFT and task == "grpo":
            from tests.swift_grpo_trace import SwiftGrpoRun as Run
        elif version == SWIFT:
            from tests.swift_trace import SwiftRun as Run
        elif task in ("grpo", "rloo"):
            from tests.trl_grpo_trace import GrpoRun as Run
        else:
            from tests.trl_trace import TrlRun as Run
        return Run

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        trace = trace_of(str(job.task))
        scored = trl_trace.of_one_kind() if (version, job.task) == ("1.9.0", "kto") else trl_trace.num_scored
        with patch.object(trl_trace, "num_scored", scored):
            return trace(model_of(row), job, card_of(GPU), str(job.task), job.prompt_length or 0, **row["options"]).go()

    add_missing(RUNS, ({"trl": version, **case} for case in cases(version)), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
