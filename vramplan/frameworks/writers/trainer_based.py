"""Keys that the writers of Trainer-based frameworks share."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.writers.config_text import FULL_NAMES, Pairs
from vramplan.inputs.job import Job

ATTENTION_NAMES = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


def batch_and_optimizer(job: Job) -> Pairs:
    """Batch and optimizer in TrainingArguments' keys."""
    return {
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optim": job.optimizer,
    }


def adapter(job: Job, rank: str, targets: str, all_linear: Any, dora: str, modules_to_save: str) -> Pairs:
    """An adapter in the framework's keys; `all_linear` is its value for all linear layers."""
    if job.method == "full":
        return {}
    layers = all_linear if job.lora_targets is None else list(job.lora_targets)
    pairs: Pairs = {rank: job.lora_rank, "lora_dropout": job.lora_dropout, targets: layers}
    return pairs | dora_and_saved_modules(job, dora, modules_to_save)


def dora_and_saved_modules(job: Job, dora: str, modules_to_save: str) -> Pairs:
    """DoRA and fully trained modules in the framework's keys."""
    pairs: Pairs = {dora: True} if job.method == "dora" else {}
    return pairs | ({modules_to_save: list(job.modules_to_save)} if job.modules_to_save else {})


def trainer_arguments(model: str, job: Job) -> Pairs:
    """Keys of TRL and of plain scripts."""
    return {
        "model_name_or_path": model,
        "dtype": FULL_NAMES[job.dtype],
        **batch_and_optimizer(job),
        "max_length": job.sequence_length,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": ATTENTION_NAMES[job.attention],
        "bf16": half_precision(job) == "bf16",
        "fp16": half_precision(job) == "fp16",
    }


def half_precision(job: Job) -> str:
    """The Trainer's half precision: autocast's dtype, or the one that DeepSpeed casts the model to."""
    return job.dtype if job.strategy.startswith("zero") else job.autocast


def reentrant_kwargs(job: Job) -> Pairs:
    """Reentrant checkpointing or not, which changes the memory of int8 layers."""
    return {"gradient_checkpointing_kwargs": {"use_reentrant": job.reentrant}} if job.checkpointing == "full" else {}
