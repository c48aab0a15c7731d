"""Batches with which TRL's trainers stop."""

from __future__ import annotations

import math

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.task_rules import OF_FRAMEWORKS, OF_SWIFT


def samples_of_step(job: Job) -> int:
    """Samples of one optimizer step if they are known, else its rows."""
    return job.global_batch_size if job.verl.samples is None else job.verl.samples


def check_batch(job: Job) -> None:
    """Check that the job's trainer takes its batch.

    Raises:
        ConfigError: with the trainer's rule.
    """
    error = batch_error(job)
    if error is not None:
        raise ConfigError(error)


def batch_error(job: Job) -> str | None:
    """Why the job's trainer does not take its batch; None if it does.

    From trl 1.16: grpo_config.py: __post_init__, kto_trainer.py: __init__. LLaMA-Factory's KTO has no such rule;
    ms-swift 4.6 (pipelines/train/kto.py) takes answers of other prompts of the whole batch.
    """
    if job.optimizer_in_backward and job.gradient_accumulation_steps > 1:
        return (
            f"{setting('gradient_accumulation_steps', job.gradient_accumulation_steps)}: torchtune stops at it with an"
            f" optimizer in backward: {setting('gradient_accumulation_steps', 1)}"
        )
    if job.task == "kto" and job.loss == "logits_to_keep" and job.global_batch_size < 2:
        return (
            f"a global batch of 1: ms-swift's KTO takes answers of other prompts of the batch: "
            f"{setting('gradient_accumulation_steps', 2)} or more"
        )
    if job.task == "kto" and job.loss not in OF_FRAMEWORKS and job.micro_batch_size < 2:
        return (
            f"{setting('micro_batch_size', job.micro_batch_size)}: TRL's KTO takes answers of other prompts of the"
            f" micro-batch: {setting('micro_batch_size', 2)} or more"
        )
    if job.task not in ROLLOUTS or job.runs_own_actor:
        return None
    steps = job.steps_per_generation or job.gradient_accumulation_steps
    completions = job.micro_batch_size * steps * job.data_parallel  # TRL's generation_batch_size
    if completions % job.num_generations == 0:
        return _mixed_prompts(job)
    return (
        f"{setting('num_generations', job.num_generations)} does not divide the {completions} completions of a"
        f" generation (micro-batch {job.micro_batch_size} x {steps} steps x {job.data_parallel} GPUs), as"
        f" {OF_FRAMEWORKS.get(job.loss, 'TRL')} requires; {_divisible(job)}"
    )


def global_batch_error(job: Job) -> str | None:
    """Why the job's trainer takes no split of its global batch into micro-batches, with a global batch that it takes.

    Args:
        job: the job with a micro-batch of 1 sample; its global batch is the one asked for.

    Returns:
        None if nothing is known against it.
    """
    total = job.global_batch_size
    if job.task == "kto" and batch_error(job) is not None:
        least = setting("global_batch", 2 * job.data_parallel)
        return f"{setting('global_batch', total)}: KTO takes answers of other prompts of a micro-batch: {least} or more"
    if job.task not in ROLLOUTS or job.steps_per_generation or batch_error(job) is None:
        return batch_error(job)
    multiple = math.lcm(job.num_generations, job.data_parallel)
    return (
        f"{setting('num_generations', job.num_generations)} does not divide {setting('global_batch', total)}, the"
        f" completions of a generation, as {OF_FRAMEWORKS.get(job.loss, 'TRL')} requires;"
        f" {setting('global_batch', math.ceil(total / multiple) * multiple)}, or for"
        f" {setting('num_generations')} a divisor of {total}"
    )


def _divisible(job: Job) -> str:
    """What makes the completions of a generation a multiple of those of a prompt."""
    rows = job.micro_batch_size * job.data_parallel
    factor = job.num_generations // math.gcd(rows, job.num_generations)
    key, steps = "gradient_accumulation_steps", job.gradient_accumulation_steps
    if job.steps_per_generation:
        key, steps = "steps_per_generation", job.steps_per_generation
    more = f"{setting(key, math.ceil(steps / factor) * factor)}"
    return f"{more}, {setting('num_generations', 'N')} with a divisor, or more GPUs ({setting('num_gpus')})"


def _mixed_prompts(job: Job) -> str | None:
    """In ms-swift logits of a micro-batch begin where its shortest prompt ends (4.6: collate_to_grpo_micro_batch).

    In one row (padding_free) all tokens behind the first prompt have logits: most where that one is as long as any.
    """
    if (
        job.loss not in OF_SWIFT
        or job.joins_samples
        or (job.prompt_length or 1) == 1
        or job.num_generations % job.micro_batch_size == 0
    ):
        return None
    return (
        f"{setting('micro_batch_size', job.micro_batch_size)} does not divide"
        f" {setting('num_generations', job.num_generations)}: ms-swift's logits begin where the shortest prompt of"
        f" a micro-batch ends, which is not known; use a divisor, or {setting('prompt_length', 1)}, which counts all"
    )
