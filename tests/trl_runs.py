"""The runs of TRL's trainers on fake tensors that the tape is compared with, in tests/trl_runs.jsonl.

`python -m tests.trl_runs` runs those that the file lacks (needs trl 1.16) and adds the peak of live tensors in each
phase, in bytes; `python -m tests.trl_runs FOLDER/trl-1.8.0` takes the package of an older version from a folder.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.helpers import card_of, spec_of
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from vramplan.inputs.task_rules import NO_REWARD

RUNS = Path(__file__).parent / "trl_runs.jsonl"
GPU = "h100"
LAYERS = "num_hidden_layers"
TRL = "1.16.0"
SMALL: dict[str, Any] = {"sequence_length": 256, "micro_batch_size": 2}
FAMILIES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama-3.2-1b", {LAYERS: 6}, {}),
    ("qwen2.5-0.5b", {LAYERS: 6}, {}),
    ("qwen3-0.6b", {LAYERS: 6}, {}),
    ("gemma-2-2b", {LAYERS: 6}, {"attention": "eager"}),
    ("gemma-3-1b-pt", {LAYERS: 8}, {}),
    ("mistral-7b-v0.3", {LAYERS: 6}, {}),
    ("phi-2", {LAYERS: 6}, {}),
    ("phi-3-mini-4k-instruct", {LAYERS: 6}, {}),
    ("gpt2", {"n_layer": 6}, {}),
    ("pythia-160m", {LAYERS: 6}, {}),
    ("falcon-7b", {LAYERS: 6}, {}),
    ("olmo-2-0425-1b", {LAYERS: 6}, {}),
    ("smollm2-135m", {LAYERS: 6}, {}),
    ("mixtral-8x7b-v0.1", {LAYERS: 5}, {}),
    ("qwen3-30b-a3b", {LAYERS: 5}, {}),
    ("opt-1.3b", {LAYERS: 6}, {}),
    ("bloom-560m", {"n_layer": 6}, {"attention": "eager"}),
    ("starcoder2-3b", {LAYERS: 6}, {}),
    ("glm-4-9b-chat-hf", {LAYERS: 6}, {}),
    ("granite-3.1-2b-instruct", {LAYERS: 6}, {}),
    ("c4ai-command-r7b-12-2024", {LAYERS: 8}, {}),
)
BY_FAMILY: tuple[dict[str, Any], ...] = (
    {"task": "dpo"},
    {"task": "dpo", "method": "full"},
    {"task": "kto"},
    {"task": "reward", "method": "full"},
    {"task": "orpo", "loss": "standard"},
)
"""Jobs that every family runs."""
FULL: dict[str, Any] = {"method": "full"}
OF_LLAMA: tuple[dict[str, Any], ...] = (
    {"checkpointing": "none"},
    {**FULL, "checkpointing": "none"},
    {**FULL, "dtype": "fp32"},
    {**FULL, "dtype": "fp32", "autocast": "none"},
    {"autocast": "none"},
    {"gradient_accumulation_steps": 4},
    {"micro_batch_size": 1},
    {"micro_batch_size": 5, "gradient_accumulation_steps": 2},
    {"prompt_length": 100},
    {"attention": "eager"},
    {"attention": "flash"},
    {"batches": "padded"},
    {"method": "dora"},
    {"lora_dropout": 0.1},
    {"lora_rank": 64, "lora_targets": ("q_proj", "v_proj")},
    {"modules_to_save": ("lm_head",)},
    {"reentrant": True},
    {"optimizer": "adafactor", **FULL},
)
"""Jobs of each task on Llama."""
DPO_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"loss_type": name} for name in ("hinge", "ipo", "robust", "bco_pair", "sppo_hard", "nca_pair", "aot")),
    *({"loss_type": name} for name in ("apo_zero", "apo_down", "discopop", "aot_unpaired", "sigmoid_norm")),
    {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    {"loss_type": "exo_pair", "label_smoothing": 0.001},
    {"label_smoothing": 0.1},
    {"use_weighting": True},
    {"ld_alpha": 0.5},
    {"f_divergence_type": "js_divergence"},
    {"f_divergence_type": "alpha_divergence"},
)
"""TRL's options of DPO, which keep nothing but numbers per sample."""
PRECOMPUTED = {"precompute_ref_log_probs": True}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job, TRL's options."""

    def case(model: str, config: dict[str, Any], job: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {"model": model, "config": config, "job": job, "options": options}

    for model, config, own in FAMILIES:
        for job in BY_FAMILY:
            if job["task"] == "reward" and spec_of(model).model_type in NO_REWARD:
                continue
            yield case(model, config, {**SMALL, "loss": "chunked", **own, **job})
    llama = ("llama-3.2-1b", {LAYERS: 6})
    for task, loss in (("dpo", "chunked"), ("kto", "chunked"), ("orpo", "standard"), ("reward", "standard")):
        for job in OF_LLAMA:
            if task == "reward" and ("prompt_length" in job or "modules_to_save" in job):
                continue
            if task == "kto" and job.get("micro_batch_size") == 1:  # TRL refuses it
                continue
            yield case(*llama, {**SMALL, "task": task, "loss": loss, **job})
    for job in OF_LLAMA:
        yield case(*llama, {**SMALL, "task": "orpo", "loss": "fused_log_probs", **job})
    for model, config, own in FAMILIES[1::4]:
        yield case(model, config, {**SMALL, "task": "orpo", "loss": "fused_log_probs", **own})
    for method in ("lora", "full"):
        for task in ("cpo", "simpo"):
            for loss in ("standard", "fused_log_probs"):
                yield case(*llama, {**SMALL, "task": task, "loss": loss, "method": method})
        for task in ("dpo", "kto"):
            job = {**SMALL, "task": task, "loss": "chunked", "method": method, "reference": "precomputed"}
            yield case(*llama, job, **PRECOMPUTED)
    for options in DPO_OPTIONS:
        yield case(*llama, {**SMALL, "task": "dpo", "loss": "chunked"}, **options)
    for model, job in (
        ("llama-3.1-8b", {"task": "dpo", "sequence_length": 2048}),
        ("llama-3.1-8b", {"task": "orpo", "loss": "standard", "sequence_length": 1024}),
        ("qwen2.5-7b", {"task": "dpo", "method": "full", "sequence_length": 1024, "prompt_length": 512}),
        ("qwen2.5-7b", {"task": "reward", "sequence_length": 4096, "batches": "padded"}),
        ("llama-3.2-1b", {"task": "kto", "sequence_length": 8192, "micro_batch_size": 4}),
    ):
        yield case(model, {}, {"loss": "chunked", "micro_batch_size": 2, **job})


def older_cases(loss: str) -> Iterator[dict[str, Any]]:
    """Runs of DPO by whole logits, which trl had until 1.14."""
    for model, config, own in FAMILIES[:9]:
        for job in ({}, FULL):
            settings = {**SMALL, "task": "dpo", **own, **job, "loss": loss}
            yield {"model": model, "config": config, "job": settings, "options": {}}
    options: list[dict[str, Any]] = [
        {"autocast": "none"},
        {"micro_batch_size": 5},
        {"prompt_length": 100, "checkpointing": "none"},
    ]
    if loss == "liger":
        options += [{"gradient_accumulation_steps": 4}, {**FULL, "gradient_accumulation_steps": 2, "dtype": "fp32"}]
        options += [{"attention": "flash", "micro_batch_size": 1}, {"modules_to_save": ("lm_head",)}]
    for job in options:
        yield {
            "model": "llama-3.2-1b",
            "config": {LAYERS: 6},
            "job": {**SMALL, "task": "dpo", **job, "loss": loss},
            "options": {},
        }


def concatenated_cases() -> Iterator[dict[str, Any]]:
    """Runs of DPO of 0.19 to 0.28 with a cross-entropy of the chosen answers, and with all answers in one row."""
    own = {**SMALL, "task": "dpo", "loss": "concatenated_states"}
    rpo, joined = {"rpo_alpha": 1.0}, {"padding_free": True}
    sft = {"loss_type": ["sigmoid", "sft"]}
    for model, config, settings in FAMILIES[:5]:
        for job in ({}, FULL):
            base = {**own, **settings, **job}
            yield {"model": model, "config": config, "job": {**base, "adds_cross_entropy": True}, "options": rpo}
            yield {"model": model, "config": config, "job": {**base, "batches": "flattened"}, "options": joined}
    more: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"adds_cross_entropy": True, "autocast": "none"}, rpo),
        ({"adds_cross_entropy": True, "micro_batch_size": 1, "checkpointing": "none"}, rpo),
        ({"adds_cross_entropy": True, "micro_batch_size": 4, "prompt_length": 100}, sft),
        ({"batches": "flattened", "micro_batch_size": 4, "prompt_length": 100}, joined),
        ({"batches": "packed", "attention": "flash"}, joined),
        ({"batches": "packed", "attention": "flash", "autocast": "none", "micro_batch_size": 1}, joined),
        ({"batches": "flattened", "adds_cross_entropy": True, "checkpointing": "none"}, {**joined, **rpo}),
        ({"batches": "flattened", "adds_cross_entropy": True, "micro_batch_size": 1}, {**joined, **rpo}),
    ]
    for job, options in more:
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**own, **job}, "options": options}


def older_kto_cases(loss: str) -> Iterator[dict[str, Any]]:
    """Runs of KTO by whole logits."""
    own = {**SMALL, "task": "kto", "loss": loss}
    for model, config, settings in FAMILIES[:7]:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**own, **settings, **job}, "options": {}}
    for job in ({"autocast": "none"}, {"micro_batch_size": 4}, {"prompt_length": 100, "checkpointing": "none"}):
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**own, **job}, "options": {}}


def older_reward_cases() -> Iterator[dict[str, Any]]:
    """Runs of reward models with a forward of the chosen texts and one of the rejected ones."""
    own = {**SMALL, "task": "reward", "loss": "two_forwards"}
    for model, config, settings in FAMILIES[:7]:
        for job in ({}, FULL):
            yield {"model": model, "config": config, "job": {**own, **settings, **job}, "options": {}}
    for job in ({"autocast": "none"}, {"micro_batch_size": 4}, {"checkpointing": "none"}, {**FULL, "dtype": "fp32"}):
        yield {"model": "llama-3.2-1b", "config": {LAYERS: 6}, "job": {**own, **job}, "options": {}}


KTO = {"1.9.0": "standard", "1.4.0": "copied_logits", "0.28.0": "copied_logits"}
"""The loss of KTO in versions of which it runs; axolotl 0.19 requires 1.9."""
OLDER = {"1.12.0": "liger", "1.8.0": "standard", "1.0.0": "sliced", "0.28.0": "concatenated_states"}
"""The loss of each older version."""


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks of this version."""
    version = Path(sys.argv[1]).name.removeprefix("trl-") if len(sys.argv) > 1 else TRL
    sys.path[:0] = sys.argv[1:]
    from tests import trl_trace
    from tests.trl_trace import TrlRun, in_one_row, of_one_kind

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        scored = of_one_kind() if job.task == "kto" and version in KTO else trl_trace.num_scored
        if job.joins_samples:
            scored = in_one_row(2 * job.micro_batch_size)
        with patch.object(trl_trace, "num_scored", scored):
            traced = TrlRun(model_of(row), job, card_of(GPU), str(job.task), job.prompt_length or 0, **row["options"])
            return traced.go()

    older = older_cases(OLDER[version]) if version in OLDER else None
    if version in KTO:
        older = itertools.chain(older or (), older_kto_cases(KTO[version]))
    if version == "0.23.1":
        older = older_reward_cases()
    if version == "0.28.0":
        older = itertools.chain(older or (), concatenated_cases())
    add_missing(RUNS, ({"trl": version, **case} for case in (cases() if older is None else older)), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
