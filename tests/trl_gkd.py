"""Runs of TRL's GKDTrainer on fake tensors, in tests/trl_gkd_runs.jsonl: a student that learns from a teacher.

`python -m tests.trl_gkd` runs those that the file lacks (needs trl 1.16) and adds the peak of live tensors in each
phase, in bytes; `python -m tests.trl_gkd FOLDER/trl-1.4.0` takes the package of an older version from a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of, spec_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import FULL, GPU, LAYERS, TRL

RUNS = Path(__file__).parent / "trl_gkd_runs.jsonl"
SMALL: dict[str, Any] = {
    "task": "gkd",
    "sequence_length": 256,
    "micro_batch_size": 2,
    "batches": "padded",
    "generated_by": "none",
}
LLAMA = "llama-3.2-1b", "meta-llama/Llama-3.2-3B"
FAMILIES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    (*LLAMA, {LAYERS: 6}, {}),
    ("qwen3-0.6b", "Qwen/Qwen3-8B", {LAYERS: 6}, {}),
    ("qwen2.5-0.5b", "Qwen/Qwen2.5-3B", {LAYERS: 6}, {}),
    ("gemma-2-2b", "google/gemma-2-9b", {LAYERS: 6}, {"attention": "eager"}),
    ("gemma-3-1b-pt", "google/gemma-3-1b-pt", {LAYERS: 8}, {}),
    ("smollm2-135m", "HuggingFaceTB/SmolLM2-1.7B", {LAYERS: 6}, {}),
    ("gpt2", "openai-community/gpt2-large", {"n_layer": 6}, {}),
    ("mistral-7b-v0.3", "mistralai/Mixtral-8x7B-v0.1", {LAYERS: 6, "vocab_size": 32000}, {}),
    ("opt-1.3b", "facebook/opt-6.7b", {LAYERS: 6}, {}),
)
"""Students with their teachers, keys of the student's configuration, settings of the job."""
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"autocast": "none"},
    {**FULL, "autocast": "none"},
    {**FULL, "dtype": "fp32"},
    {**FULL, "dtype": "fp32", "teacher_dtype": "bf16"},
    {"micro_batch_size": 1},
    {"micro_batch_size": 5, "gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 4},
    {"prompt_length": 100},
    {"divergence": "forward_kl"},
    {"divergence": "reverse_kl"},
    {**FULL, "divergence": "reverse_kl", "prompt_length": 200},
    {"checkpointing": "none"},
    {**FULL, "checkpointing": "none", "sequence_length": 1024},
    {"reentrant": True},
    {"attention": "flash"},
    {"attention": "eager"},
    {"batches": "unpadded"},
    {"method": "dora"},
    {"modules_to_save": ("lm_head",)},
    {"lora_dropout": 0.1},
    {**FULL, "optimizer": "adafactor"},
)
"""Jobs on Llama."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the student, keys of its configuration, the job with its teacher."""
    for student, teacher, config, own in FAMILIES:
        for job in ({}, FULL):
            yield {"model": student, "config": config, "job": {**SMALL, "teacher": teacher, **own, **job}}
    for job in OF_LLAMA:
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**SMALL, "teacher": LLAMA[1], **job}}


OLDER = "1.4.0"
"""A version that compares completions alone."""


def older_cases() -> Iterator[dict[str, Any]]:
    """Runs of that version."""
    own = {**SMALL, "teacher": LLAMA[1], "loss": "sliced"}
    for job in (
        {"prompt_length": 100},
        {**FULL, "prompt_length": 100},
        {"prompt_length": 200, "micro_batch_size": 1, "divergence": "forward_kl"},
        {"prompt_length": 64, "micro_batch_size": 5, "gradient_accumulation_steps": 2},
        {"prompt_length": 128, "autocast": "none", "checkpointing": "none"},
    ):
        yield {"model": LLAMA[0], "config": {LAYERS: 6}, "job": {**own, **job}}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks of this version."""
    version = Path(sys.argv[1]).name.removeprefix("trl-") if len(sys.argv) > 1 else TRL
    sys.path[:0] = sys.argv[1:]
    from tests.trl_gkd_trace import GkdRun

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return GkdRun(model_of(row), spec_of(str(job.teacher)), job, card_of(GPU)).go()

    add_missing(RUNS, ({"trl": version, **case} for case in (older_cases() if version == OLDER else cases())), run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
