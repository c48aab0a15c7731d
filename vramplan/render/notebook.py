"""Answers in Python and in notebooks: a line each, and as HTML the picture of the report or what a terminal shows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vramplan.render.figures import filled_by_tokens
from vramplan.render.python_words import html_in_python
from vramplan.render.verdict import SIGNS, need_of_capacity, outcome, subject
from vramplan.units import GiB, counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vramplan.memory.estimate import Estimate
    from vramplan.planner.compare import Comparison
    from vramplan.planner.fix import Fix
    from vramplan.planner.hardware_plan import Hardware
    from vramplan.planner.out_of_memory import Explanation
    from vramplan.planner.search_result import Search
    from vramplan.planner.table import Table
    from vramplan.planner.token_budget import TokenBudgets
    from vramplan.planner.verdict import Verdict

COLUMNS = 110
"""Of a text in a notebook."""


def line(result: Any) -> str:
    """An answer in one line, as ``repr`` shows it."""
    name = type(result).__name__
    return f"{name}({LINES[name](result)})"


def html(result: Any) -> str:
    """An answer as a fragment of HTML that needs no script."""
    name = type(result).__name__
    if name in TEXTS:
        return _as_text(TEXTS[name](result))
    from vramplan.render.web.frame import source

    picture = "".join(PICTURES[name](result))
    return f'<style>{source("style.css")}</style><div class="vramplan notebook">{picture}</div>'


# -- lines -------------------------------------------------------------------------------------------------------------


def _estimate(estimate: Estimate) -> str:
    job = estimate.job
    factors = (job.micro_batch_size, job.gradient_accumulation_steps, job.data_parallel)
    need, capacity = need_of_capacity(estimate.device_total_bytes, estimate.capacity_bytes)
    words = SIGNS[outcome(estimate)][1].lower()
    plan = ", ".join(filled_by_tokens(job) or (f"{' × '.join(map(str, factors))} = {job.global_batch_size}",))
    return f"{subject(estimate.model, estimate.card_title, job.num_gpus)}: {words}, {need} of {capacity} GiB, {plan}"


def _search(search: Search) -> str:
    return _estimate(search.estimate)


def _verdict(verdict: Verdict) -> str:
    words = "depends" if verdict.depends else "fits" if verdict.fits else "does not fit"
    need, capacity = need_of_capacity(verdict.need_bytes, verdict.estimate.capacity_bytes)
    model = subject(verdict.estimate.model, verdict.card.title, verdict.estimate.job.num_gpus)
    return f"{verdict.reading.framework}, {model}: {words}, {need} of {capacity} GiB"


def _comparison(comparison: Comparison) -> str:
    return "; ".join(f"{side.title}: {'fits' if side.fits else 'does not fit'}" for side in comparison.sides)


def _fix(fix: Fix) -> str:
    return f"{counted(len(fix.changes), 'change')}, {_verdict(fix.after)}"


def _hardware(found: Hardware) -> str:
    return f"{found.model}, global batch {found.global_batch_size}: {counted(len(found.plans), 'plan')}"


def _table(table: Table) -> str:
    return f"{counted(len(table.rows), 'row')} × {counted(len(table.sheet.cards), 'GPU')}"


def _token_budgets(found: TokenBudgets) -> str:
    budgets = ", ".join(f"{budget.counting} {budget.max_tokens:,} tokens" for budget in found.budgets)
    return f"{subject(found.model, found.gpu.title, found.job.num_gpus)}: {budgets}"


def _explanation(found: Explanation) -> str:
    figures = found.failure.figures
    sizes = [
        f"{words} {amount.num_bytes / GiB:.2f} GiB"
        for words, amount in (("asked for", figures.requested), ("free", figures.free), ("of", figures.capacity))
        if amount is not None
    ]
    reasons = ", ".join(cause.name for cause in found.causes) or "no cause named"
    return "; ".join([f"{found.failure.phase or 'phase not known'}: {reasons}", *([", ".join(sizes)] if sizes else [])])


LINES: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "Estimate": _estimate,
        "Search": _search,
        "Verdict": _verdict,
        "Comparison": _comparison,
        "Fix": _fix,
        "Hardware": _hardware,
        "Table": _table,
        "TokenBudgets": _token_budgets,
        "Explanation": _explanation,
    }
)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _picture_of_search(search: Search) -> Iterable[str]:
    from vramplan.render.web.answer import of_search

    return map(html_in_python, of_search(search))


def _picture_of_estimate(estimate: Estimate) -> Iterable[str]:
    from vramplan.render.web.answer import of_estimate

    return map(html_in_python, of_estimate(estimate))


def _picture_of_check(verdict: Verdict) -> Iterable[str]:
    from vramplan.render.web.checked import of_check

    return of_check(verdict)


def _picture_of_fix(fix: Fix) -> Iterable[str]:
    from vramplan.render.web.checked import of_fix

    return of_fix(fix)


def _picture_of_explanation(found: Explanation) -> Iterable[str]:
    from vramplan.render.web.checked import of_failure

    return of_failure(found)


def _picture_of_table(table: Table) -> Iterable[str]:
    from vramplan.render.table import html as table_of

    return table_of(table)


PICTURES: Mapping[str, Callable[[Any], Iterable[str]]] = MappingProxyType(
    {
        "Search": _picture_of_search,
        "Estimate": _picture_of_estimate,
        "Verdict": _picture_of_check,
        "Fix": _picture_of_fix,
        "Explanation": _picture_of_explanation,
        "Table": _picture_of_table,
    }
)


# -- texts -------------------------------------------------------------------------------------------------------------


def _text_of_comparison(comparison: Comparison) -> RenderableType:
    from vramplan.render import compare

    return compare.answer(comparison)


def _text_of_hardware(found: Hardware) -> RenderableType:
    from vramplan.render import hardware

    return hardware.answer(found)


def _text_of_budgets(found: TokenBudgets) -> RenderableType:
    from vramplan.render import token_budget

    return token_budget.answer(found)


TEXTS: Mapping[str, Callable[[Any], RenderableType]] = MappingProxyType(
    {
        "Comparison": _text_of_comparison,
        "Hardware": _text_of_hardware,
        "TokenBudgets": _text_of_budgets,
    }
)


def _as_text(shown: RenderableType) -> str:
    """What a terminal shows, in its colours, as one preformatted text."""
    from vramplan.render.terminal import SafeConsole

    console = SafeConsole(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.3">{code}</pre>')
