"""Runs of torchtune's recipes for several GPUs on emulated ones, in tests/torchtune_sharing_runs.jsonl.

`python -m tests.torchtune_sharing` runs those that the file lacks, where PyTorch's CUDA build, torchtune 0.6.1 and
torchao 0.14 are installed (later ones have no `torchao.dtypes.nf4tensor`, which torchtune imports) and
`vramplan emulate --install` was run. It adds rank 0's peak of bytes in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.torchtune_runs import VERSION
from tests.trl_runs import LAYERS
from tests.trl_sharing import record_missing

RUNS = Path(__file__).parent / "torchtune_sharing_runs.jsonl"
SHARED: dict[str, Any] = {
    "num_gpus": 2, "sequence_length": 250, "micro_batch_size": 2, "strategy": "fsdp", "layers_of": "torchtune",
    "loop": "plain", "dtype": "bf16", "autocast": "none", "lora_dtype": "bf16", "optimizer": "adamw_torch_fused",
    "batches": "unpadded",
}  # fmt: skip
ROOT = {"wraps_embeddings": False, "sync_each_batch": True}
ALONE = {"wraps_embeddings": True, "sync_each_batch": True}
"""Without and with ``custom_sharded_layers: [tok_embeddings, output]``."""
DPO = {"task": "dpo", "loss": "scaled_log_softmax"}
SECTIONS = {"loss": "sections"}
TIED = ("llama-3.2-1b", {LAYERS: 4})
UNTIED = ("llama-3.2-1b", {LAYERS: 3, "tie_word_embeddings": False})
LLAMA2 = ("llama-2-7b-hf", {LAYERS: 3})
QWEN = ("qwen2.5-0.5b", {LAYERS: 4})
CASES: tuple[tuple[tuple[str, dict[str, Any]], dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    (TIED, DPO, ROOT, {"method": "lora"}),
    (UNTIED, DPO, ALONE, {"method": "lora", "gradient_accumulation_steps": 2}),
    (LLAMA2, DPO, ROOT, {"method": "lora", "lora_targets": ("q_proj", "v_proj"), "optimizer": "adamw_torch_loop"}),
    (LLAMA2, DPO, ALONE, {"method": "lora", "sequence_length": 1000, "micro_batch_size": 1, "dtype": "fp32",
                          "lora_dtype": "fp32"}),
    (TIED, DPO, ROOT, {"method": "full"}),
    (UNTIED, DPO, ROOT, {"method": "full", "micro_batch_size": 1, "sequence_length": 700}),
    (UNTIED, DPO, ALONE, {"method": "full", "gradient_accumulation_steps": 2}),
    (QWEN, DPO, ROOT, {"method": "full", "gradient_accumulation_steps": 2, "optimizer": "adamw_torch_loop"}),
    (LLAMA2, DPO, {**ROOT, "reshard_after_forward": False}, {"method": "full"}),
    (TIED, SECTIONS, ROOT, {"method": "full"}),
    (UNTIED, SECTIONS, ALONE, {"method": "full", "sequence_length": 1000, "gradient_accumulation_steps": 2}),
    (QWEN, SECTIONS, ROOT, {"method": "full", "sequence_length": 1000, "micro_batch_size": 4}),
    (UNTIED, SECTIONS, ROOT, {"method": "lora", "sequence_length": 1000, "lora_dropout": 0.1}),
    (LLAMA2, SECTIONS, ALONE, {"method": "lora", "gradient_accumulation_steps": 2}),
    (TIED, {"loss": "standard"}, ROOT, {"method": "lora", "sequence_length": 1000}),
    (QWEN, SECTIONS, ROOT, {"method": "lora"}),
    (UNTIED, SECTIONS, ALONE, {"method": "full", "offload": "all"}),
    (UNTIED, DPO, ROOT, {"method": "full", "offload": "all"}),
    (QWEN, DPO, ROOT, {"method": "full", "num_gpus": 3}),
    (UNTIED, SECTIONS, ROOT, {"method": "lora", "checkpointing": "none", "sequence_length": 1000}),
    (UNTIED, SECTIONS, ROOT, {"method": "full", "checkpointing": "none", "sequence_length": 1000}),
    (QWEN, DPO, ROOT, {"method": "full", "checkpointing": "none"}),
    (UNTIED, SECTIONS, ALONE, {"method": "full", "micro_batch_size": 1, "num_gpus": 3}),
    (LLAMA2, SECTIONS, ROOT, {"method": "lora", "quantize": "nf4"}),
    (UNTIED, SECTIONS, ALONE, {"method": "lora", "quantize": "nf4", "sequence_length": 1000,
                               "gradient_accumulation_steps": 2}),
    (LLAMA2, SECTIONS, ROOT, {"method": "lora", "offloads_activations": True, "sequence_length": 1000}),
    (UNTIED, SECTIONS, ALONE, {"method": "full", "offloads_activations": True, "sequence_length": 1000}),
    (LLAMA2, SECTIONS, ROOT, {"method": "dora", "sequence_length": 1000}),
    (UNTIED, SECTIONS, ROOT, {"method": "full", "optimizer_in_backward": True}),
    (QWEN, SECTIONS, ROOT, {"method": "full", "optimizer_in_backward": True, "optimizer": "adamw_torch",
                            "sequence_length": 1000, "micro_batch_size": 1}),
)  # fmt: skip


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for (model, config), task, fsdp, more in CASES:
        yield {"model": model, "config": config, "job": {**SHARED, **task, "fsdp": fsdp, **more}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    rows = ({"version": VERSION, **case} for case in cases())
    raise SystemExit(record_missing(RUNS, rows, "tests.torchtune_sharing_run"))
