"""A token budget in a framework's own words: packed rows, computed for the settings as that framework reads them."""

from __future__ import annotations

from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.export import BATCH, ExportedPlan, written_as
from vramplan.planner.token_budget import TokenBudget, job_of, token_budget


def export_tokens(
    framework: str,
    model: str | ModelSpec,
    gpu: Gpu,
    budget: TokenBudget,
    *,
    longest: int | None,
    global_tokens: int | None,
    confidence: float,
) -> ExportedPlan:
    """A budget of packed tokens as text to paste; another one if the framework takes the job otherwise.

    Args:
        framework: the framework's name.
        model: the model.
        gpu: the GPU.
        budget: the budget, found for the job as it was asked for.
        longest: tokens of the longest sample; None if any that fits may come.
        global_tokens: tokens of an optimizer step; None if they do not matter.
        confidence: as it was found with.

    Raises:
        UnsupportedError: if the framework does not pack samples with these settings.
    """
    job = job_of(budget)
    first = written_as(framework, model, job)
    as_read = Job(**first.settings)
    if not as_read.joins_samples:
        raise UnsupportedError(
            f"{setting('for_framework', framework)}: it takes these settings as {as_read.batches} samples, not as"
            f" packed rows; use {setting('global_batch')} there"
        )
    if as_read == job:
        return first
    settings = {
        name: value for name, value in first.settings.items() if name not in (*BATCH, "sequence_length", "batches")
    }
    (again,) = token_budget(
        model,
        gpu,
        sequence_length=longest,
        global_tokens=global_tokens,
        batches="packed",
        confidence=confidence,
        **settings,
    ).budgets
    if not again.max_tokens:
        return first._replace(notes=[*first.notes, f"as {framework} takes it, no budget fits"], fits=False)
    second = written_as(framework, model, job_of(again), job)
    tokens = f"as {framework} takes it, {again.max_tokens:,} tokens fit, not {budget.max_tokens:,}"
    return second._replace(notes=[*second.notes, *([tokens] if again.max_tokens != budget.max_tokens else [])])
