"""The changes that the answer of `check` names first, which `fix` writes."""

from __future__ import annotations

from typing import Any

from vramplan.planner.levers import Lever
from vramplan.planner.search_result import LeverEffect
from vramplan.planner.verdict import Verdict

SAME = "same result"
"""The cost of another batch with the same global batch."""


def named_changes(verdict: Verdict) -> tuple[Lever, ...]:
    """The first way out of a verdict as changes of the job; none if there is none, or a part of it is no setting."""
    job, plan, change = verdict.estimate.job, verdict.plan, verdict.nearest_change
    eval_batch_size, effect_levers = verdict.eval_batch_size, list[Lever]()
    micro_batch_size = job.micro_batch_size if plan is None else plan.micro_batch_size
    if plan is None and not (verdict.trains and eval_batch_size):
        if change is None or is_of_environment(change):
            return ()
        micro_batch_size, eval_batch_size = change.micro_batch_size, change.eval_batch_size or eval_batch_size
        effect_levers = _parts(change)
    batches: list[dict[str, Any]] = []
    if micro_batch_size != job.micro_batch_size:
        per_gpu = job.global_batch_size // job.data_parallel
        steps = max(1, per_gpu // micro_batch_size)
        batches.append({"micro_batch_size": micro_batch_size, "gradient_accumulation_steps": steps})
    if eval_batch_size:
        batches.append({"eval_batch_size": eval_batch_size})
    return (*(Lever("", "", SAME, batch) for batch in batches), *effect_levers)


def is_of_environment(change: LeverEffect) -> bool:
    """Whether a change is a variable of the environment, at least in part, which no configuration holds."""
    return "expandable_segments" in change.update


def _parts(change: LeverEffect) -> list[Lever]:
    """A change by the costs of its parts."""
    updates: dict[str, dict[str, Any]] = {}
    for name, value in change.update.items():
        updates.setdefault(change.costs.get(name, change.cost), {})[name] = value
    return [Lever(change.change, change.why, cost, update) for cost, update in updates.items()]


__all__ = ["SAME", "is_of_environment", "named_changes"]
