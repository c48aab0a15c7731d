"""Runs of torchtune's recipes for one GPU on an emulated one, in tests/torchtune_alone_runs.jsonl.

`python -m tests.torchtune_alone` runs those that the file lacks, in the environment of `tests.torchtune_sharing` with
bitsandbytes 0.50. It adds the peak of bytes in each phase; what is updated in backward has no phase of the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.torchtune_runs import VERSION
from tests.trl_runs import LAYERS
from tests.trl_sharing import record_missing

RUNS = Path(__file__).parent / "torchtune_alone_runs.jsonl"
ALONE: dict[str, Any] = {
    "sequence_length": 250, "micro_batch_size": 2, "layers_of": "torchtune", "loop": "plain", "dtype": "bf16",
    "autocast": "none", "lora_dtype": "bf16", "optimizer": "adamw_torch_fused", "batches": "unpadded",
    "loss": "sections", "method": "full",
}  # fmt: skip
TIED = ("llama-3.2-1b", {LAYERS: 6})
UNTIED = ("llama-3.2-1b", {LAYERS: 6, "tie_word_embeddings": False})
LLAMA2 = ("llama-2-7b-hf", {LAYERS: 5})
QWEN = ("qwen2.5-0.5b", {LAYERS: 6})
LONG = {"sequence_length": 1000}
QLORA = {"method": "lora", "quantize": "nf4"}
IN_BACKWARD = {"optimizer_in_backward": True}
OFFLOADS = {"offloads_activations": True}
CASES: tuple[tuple[tuple[str, dict[str, Any]], dict[str, Any]], ...] = (
    (TIED, LONG),
    (UNTIED, {"optimizer": "paged_adamw_8bit", "gradient_accumulation_steps": 2}),
    (TIED, QLORA),
    (LLAMA2, {**QLORA, **LONG, "lora_targets": ("q_proj", "v_proj"), "lora_dropout": 0.1}),
    (UNTIED, {**QLORA, **LONG, "gradient_accumulation_steps": 2}),
    (LLAMA2, {**QLORA, "dtype": "fp32", "lora_dtype": "fp32"}),
    (LLAMA2, {**QLORA, **LONG, "checkpointing": "none"}),
    (LLAMA2, {**QLORA, "task": "dpo", "loss": "scaled_log_softmax"}),
    (TIED, IN_BACKWARD),
    (UNTIED, {**IN_BACKWARD, **LONG, "optimizer": "paged_adamw_8bit"}),
    (LLAMA2, {**IN_BACKWARD, **LONG, "optimizer": "paged_adamw_32bit"}),
    (QWEN, {**IN_BACKWARD, "optimizer": "adamw_torch", "micro_batch_size": 4}),
    (LLAMA2, {**IN_BACKWARD, "optimizer": "adamw_8bit", "checkpointing": "none"}),
    (LLAMA2, {**OFFLOADS, **LONG}),
    (TIED, {**OFFLOADS, **LONG, "gradient_accumulation_steps": 2}),
    (LLAMA2, {**OFFLOADS, **LONG, "method": "lora"}),
    (LLAMA2, {**OFFLOADS, **IN_BACKWARD, **LONG, "optimizer": "paged_adamw_32bit"}),
    (LLAMA2, {**OFFLOADS, **QLORA, **LONG}),
    (LLAMA2, {**OFFLOADS, "dtype": "fp32", **LONG}),
    (QWEN, {**QLORA, **LONG}),
    (LLAMA2, {**LONG, "method": "dora"}),
    (LLAMA2, {**QLORA, **LONG, "method": "dora", "lora_dropout": 0.1, "gradient_accumulation_steps": 2}),
    (TIED, {"method": "dora", "checkpointing": "none"}),
    (TIED, {"optimizer": "adamw_torch_8bit"}),
)


PACKED: tuple[tuple[tuple[str, dict[str, Any]], dict[str, Any]], ...] = (
    (LLAMA2, {"method": "lora", "sequence_length": 1024}),
    (TIED, {"sequence_length": 1024, "checkpointing": "none"}),
)
"""The same of ``dataset.packed``, with flex_attention."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for (model, config), more in CASES:
        yield {"model": model, "config": config, "job": {**ALONE, **more, "num_gpus": 1}}
    for (model, config), more in PACKED:
        job = {**ALONE, **more, "batches": "packed", "num_gpus": 1}
        yield {"model": model, "config": config, "packed": True, "job": job}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    rows = ({"version": VERSION, **case} for case in cases())
    raise SystemExit(record_missing(RUNS, rows, "tests.torchtune_sharing_run"))
