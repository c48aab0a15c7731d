"""What is known of batches that are too large, or split into too many steps: guidance, with its sources."""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.inputs.embedding import CACHED, IN_BATCH
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate
from vramplan.planner.search_result import Plan

MANY_STEPS = 64
"""Accumulation beyond this draws a warning."""
LARGEST_LORA_BATCH = 32
"""TRL's guide to "LoRA Without Regret" keeps the effective batch below 32 (trl, docs/source/lora_without_regret.md).
The post itself finds that LoRA falls behind full fine-tuning as the batch grows, whatever the rank; it names no
limit."""
FEWEST_UPDATES = 100
"""Tinker's documentation of hyperparameters (supervised-learning/sl-hyperparams) aims at 100 steps at least."""
CRITICAL_PLATEAU_TOKENS = 4096 * 4096
"""The critical batch size of OLMo 1B and 7B levels off at 4,096 documents of 4,096 tokens (arXiv 2505.23971)."""
LEAST_LAW_TOKENS, MOST_LAW_TOKENS = 1.7e9, 24e9
"""Tokens of the runs that the law of :func:`critical_batch_tokens` was fitted to."""


def batch_warnings(plan: Plan | None) -> list[str]:
    """Warnings about a plan's batch; none without a plan."""
    if plan is None:
        return []
    micro, steps = plan.micro_batch_size, plan.gradient_accumulation_steps
    return [*_accumulation(plan), *fewer_negatives(plan.estimate.job, micro, micro * steps)]


def fewer_negatives(job: Job, micro_batch_size: int, other: int) -> list[str]:
    """What a contrastive loss loses if a micro-batch has `micro_batch_size` samples and not as many as `other`.

    (sentence-transformers 6.2, losses/multiple_negatives_ranking.py: the other samples of a forward are the negatives.)
    """
    if job.task != "embedding" or job.embedding_loss not in (*IN_BATCH, CACHED) or micro_batch_size >= other:
        return []
    alone = f"{micro_batch_size} samples of a micro-batch are each other's negatives, not {other}"
    if micro_batch_size == 1:
        alone = f"1 sample has no others as negatives, which a micro-batch of {other} has"
    kept = "" if job.joins_texts else f"; {_keeper(job)}"
    return [f"{alone}: accumulation adds none, and fewer negatives train another model{kept}"]


def _keeper(job: Job) -> str:
    """What keeps the negatives of a larger micro-batch."""
    if job.embedding_loss == CACHED:
        return "a smaller mini_batch_size keeps them" if job.mini_batch_size > 1 else "a larger GPU keeps them"
    return f"{IN_BATCH[job.embedding_loss]} keeps them, a mini_batch_size at a time"


def batch_guidance(plan: Plan | None) -> list[str]:
    """What is known of global batches that are too large; nothing without a plan."""
    return [] if plan is None else [*_global_batch(plan), *_updates(plan)]


def accumulation_guidance(smallest: Estimate, global_batch_size: int) -> list[str]:
    """Why accumulation needs more memory than none, if it does: the pair that needs least has none."""
    job = smallest.job
    if job.strategy != "fsdp" or smallest.gradient_accumulation_steps > 1 or global_batch_size == job.data_parallel:
        return []
    return [
        "FSDP keeps whole gradients on each GPU until the last micro-batch of a step (no_sync in accelerate and torch):"
        " accumulation needs more memory than a larger micro-batch without it"
    ]


def critical_batch_tokens(run_tokens: float) -> float:
    """The batch in tokens past which steps are saved at less than full effect, for pre-training on so many tokens.

    22.91 x (tokens / 1e6) ** 0.47 sequences of 512 tokens: there, the same loss takes 20 % more steps than with perfect
    scaling (arXiv 2410.21676 and its authors' notebook, hlzhang109/critical-batch-size: plots/chinchilla.ipynb; models
    of 85M to 1.2B parameters on C4).

    >>> round(critical_batch_tokens(3.072e9) / 512)
    998
    """
    return float(22.91 * (run_tokens / 1e6) ** 0.47 * 512)


def _accumulation(plan: Plan) -> Iterator[str]:
    steps = plan.gradient_accumulation_steps
    if steps > MANY_STEPS:
        yield (
            f"{steps} accumulation steps: past {MANY_STEPS} each update waits very long, and small batches train as"
            " well (arXiv 2507.07101); consider a smaller global batch"
        )


def _global_batch(plan: Plan) -> Iterator[str]:
    job, batch = plan.estimate.job, plan.global_batch_size
    if job.method != "full":
        if batch > LARGEST_LORA_BATCH:
            yield (
                "LoRA falls behind full fine-tuning as the batch grows; TRL's guide keeps it below"
                f" {LARGEST_LORA_BATCH}, this is {batch:,}"
            )
        return
    tokens = batch * job.sequence_length
    run_tokens = _run_tokens(plan, job)
    if run_tokens is not None and LEAST_LAW_TOKENS <= run_tokens <= MOST_LAW_TOKENS:
        critical = critical_batch_tokens(run_tokens)
        if tokens > critical:
            yield (
                f"{tokens:,} tokens a step pass the critical batch size, about {critical:,.0f} when small"
                f" models are pre-trained on {run_tokens:,} tokens (arXiv 2410.21676): beyond it, larger batches save"
                " fewer steps than they cost"
            )
    elif tokens > CRITICAL_PLATEAU_TOKENS:
        yield (
            f"{tokens:,} tokens a step pass the critical batch size of OLMo 1B and 7B, which levels off at"
            f" {CRITICAL_PLATEAU_TOKENS:,} tokens (arXiv 2505.23971)"
        )


def _updates(plan: Plan) -> Iterator[str]:
    if plan.run is not None and plan.run.optimizer_updates < FEWEST_UPDATES:
        yield (
            f"the run has {plan.run.optimizer_updates:,} optimizer steps; fine-tuning takes"
            f" {FEWEST_UPDATES} at least, better 1,000 (Tinker's documentation): a smaller global batch has more"
        )


def _run_tokens(plan: Plan, job: Job) -> int | None:
    """Tokens of the whole run; None if its length is not known."""
    if plan.run is None:
        return None
    return plan.run.micro_steps * plan.micro_batch_size * plan.data_parallel * job.sequence_length
