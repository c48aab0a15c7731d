"""Token budgets as JSON, of the types in :mod:`vramplan.render.token_types`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.render.json_output import estimate

if TYPE_CHECKING:
    from vramplan.planner.token_budget import TokenBudget, TokenBudgets
    from vramplan.render import token_types as types


def token_budgets(found: TokenBudgets) -> types.TokenBudgetsData:
    """`vramplan suggest --tokens --json`."""
    return {
        "model": found.model,
        "gpu": found.gpu.name,
        "longest_asked": found.longest_asked,
        "global_tokens": found.global_tokens,
        "expandable_segments": found.job.expandable_segments,
        "budgets": [_budget(one) for one in found.budgets],
    }


def _budget(budget: TokenBudget) -> types.TokenBudgetData:
    return {
        "counting": budget.counting,
        "max_tokens": budget.max_tokens,
        "longest_sample": budget.longest_sample,
        "gradient_accumulation_steps": budget.gradient_accumulation_steps,
        "micro_batch_tokens": budget.micro_batch_tokens,
        "fullest": {"samples": budget.fullest.samples, "length": budget.fullest.length},
        "estimate": estimate(budget.estimate),
    }
