"""Runs of verl's own FSDP engines on two emulated GPUs, in tests/verl_sharing_runs.jsonl.

`python -m tests.verl_sharing` runs those that the file lacks, where PyTorch's CUDA build is installed and
`vramplan emulate --install` was run. verl 0.9.1 has to be importable, and so ray, tensordict, omegaconf, hydra and
codetiming. It adds rank 0's peak of bytes in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import LAYERS
from tests.trl_sharing import record_missing

RUNS = Path(__file__).parent / "verl_sharing_runs.jsonl"
VERSION = "verl 0.9.1"
MODEL = "llama-3.2-1b"
SMALL: dict[str, Any] = {LAYERS: 4, "vocab_size": 32000}
TIED, UNTIED = ({**SMALL, "tie_word_embeddings": tied} for tied in (True, False))
FSDP2: dict[str, Any] = {"version": 2, "reduce_dtype": "fp32", "sync_each_batch": True}
FSDP1: dict[str, Any] = {**FSDP2, "version": 1, "use_orig_params": False, "backward_prefetch": "pre"}
VERL: dict[str, Any] = {"bucket_mib": 64}
JOB: dict[str, Any] = {
    "task": "grpo", "loss": "log_probs", "loop": "plain", "method": "full", "dtype": "fp32", "autocast": "bf16",
    "optimizer": "adamw_torch", "batches": "unpadded", "attention": "flash", "sequence_length": 256,
    "micro_batch_size": 2, "gradient_accumulation_steps": 2, "prompt_length": 64, "generate_with": "vllm_server",
    "num_gpus": 2, "strategy": "fsdp", "fsdp": FSDP2, "verl": VERL,
}  # fmt: skip
CRITIC: dict[str, Any] = {
    "batches": "unpadded", "sequence_length": 256, "micro_batch_size": 2, "gradient_accumulation_steps": 2,
    "scored_tokens": 512,
}  # fmt: skip
OFF = {"param_offload": True, "optimizer_offload": True}
OF_UNTIED: tuple[dict[str, Any], ...] = (
    {},
    {"method": "lora"},
    {"verl": {**VERL, **OFF}},
    {"offload": "all"},
    {"reference": "model"},
    {"verl": {**VERL, "critic": CRITIC}},
    {"fsdp": {**FSDP2, "sync_each_batch": False}},
    {"fsdp": {**FSDP2, "reshard_after_forward": False}},
    {"fsdp": {**FSDP2, "forward_prefetch": True}},
    {"dtype": "bf16", "autocast": "none"},
    {"task": None, "prompt_length": None, "generate_with": "transformers", "verl": {}},
    {"fsdp": FSDP1, "reference": "model", "verl": {**VERL, "keeps_root": True}},
)
OF_TIED: tuple[dict[str, Any], ...] = (
    {},
    {"method": "lora", "micro_batch_size": 4, "verl": {**VERL, "fused_head": "torch"}},
    {"micro_batch_size": 4, "verl": {**VERL, "fused_head": "torch", "entropy": True}},
    {"verl": {**VERL, **OFF, "critic": {**CRITIC, **OFF}}},
)
WIDE: dict[str, Any] = {
    LAYERS: 2, "tie_word_embeddings": True, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8,
    "head_dim": 64, "intermediate_size": 512, "vocab_size": 64000,
}  # fmt: skip
"""Of which the head needs most."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""
    for job in OF_UNTIED:
        yield {"model": MODEL, "config": UNTIED, "job": {**JOB, **job}}
    for job in OF_TIED:
        yield {"model": MODEL, "config": TIED, "job": {**JOB, **job}}
    fused = {"fsdp": FSDP1, "micro_batch_size": 4, "verl": {**VERL, "fused_head": "torch"}}
    yield {"model": MODEL, "config": UNTIED, "job": {**JOB, **fused}}
    for own in ({"fused_head": "torch"}, {"fused_head": "torch", "entropy": True}, {"fused_head": "triton"}):
        wide = {"micro_batch_size": 6, "verl": {**VERL, **own}}
        yield {"model": MODEL, "config": WIDE, "job": {**JOB, **wide}}
    for tied in (TIED, UNTIED):
        odd = {**tied, "vocab_size": 32001, "intermediate_size": 8191}  # rows that two GPUs do not divide
        yield {"model": MODEL, "config": odd, "job": {**JOB, "verl": {**VERL, "shares_columns": True}}}
    adapted = {"method": "lora", "fsdp": FSDP1, "verl": {**VERL, "keeps_root": True}}
    yield {"model": MODEL, "config": UNTIED, "job": {**JOB, **adapted}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, ({"version": VERSION, **case} for case in cases()), "tests.verl_sharing_run"))
