"""`vramplan suggest --tokens` for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.planner.token_budget import COUNTED, TokenBudget, TokenBudgets
from vramplan.render.figures import gib
from vramplan.render.terminal import (
    Answer,
    Box,
    Screen,
    all_assumptions,
    assumption_line,
    hanging,
    indented,
    notes,
    simple_table,
    where_it_goes,
)
from vramplan.render.verdict import outcome_of, subject


def answer(found: TokenBudgets, verbose: bool = False) -> Answer:
    """Everything that `vramplan suggest --tokens` prints."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        fullest = max(found.budgets, key=lambda budget: budget.estimate.device_total_bytes)
        estimate = fullest.estimate
        box = Box(
            subject(found.model, found.gpu.title, found.job.num_gpus),
            outcome_of(found.fits, estimate.fits_without_margin),
            estimate.device_total_bytes,
            estimate.capacity_bytes,
            estimate.margin_bytes,
            verdict="" if found.fits or found.longest_asked is None else "THE LONGEST SAMPLE DOES NOT FIT",
            reason="" if found.fits or not estimate.fits else "runs of mixed lengths run out of memory",
        )
        lines = [line for budget in found.budgets for line in _line(screen, budget, found.longest_asked)]
        shown: list[RenderableType] = [
            box.panel(screen, lines),
            assumption_line(screen, estimate, verbose=verbose),
            *notes(screen, estimate.notes),
            *(_budgets(screen, found) if found.fits else ()),
            Text(""),
            where_it_goes(estimate)(screen),
        ]
        return [*shown, *(all_assumptions(screen, estimate) if verbose else [])]

    return Answer(lay_out)


def _line(screen: Screen, budget: TokenBudget, longest_asked: int | None) -> list[Text]:
    if not budget.max_tokens:
        if not budget.longest_sample:
            return [screen.text(f"{budget.counting}: no sample fits")]
        asked = "" if longest_asked is None else f", {longest_asked:,} do not"
        return [screen.text(f"{budget.counting}: samples of {budget.longest_sample:,} tokens fit{asked}")]
    steps = budget.gradient_accumulation_steps
    count = "1 micro-batch" if steps == 1 else f"{steps:,} micro-batches" if steps else ""
    times = f", {count} of {budget.micro_batch_tokens:,} in an optimizer step" if count else ""
    return [Text.assemble((f"{budget.max_tokens:,}", "bold"), screen.text(f" {budget.counting} tokens{times}"))]


def _allocator(found: TokenBudgets) -> str:
    if found.job.expandable_segments:
        return (
            f"set {EXPANDABLE_SEGMENTS}. Without it, lengths that vary leave PyTorch's cache in pieces, and fewer"
            " tokens fit: --no-expandable-segments says how many"
        )
    return (
        "this is the most at which simulated runs of mixed lengths did not run out of memory. With"
        f" {EXPANDABLE_SEGMENTS} more fit, whatever the order"
    )


def _budgets(screen: Screen, found: TokenBudgets) -> list[RenderableType]:
    """Each way of counting; in lines if there is little room."""
    above = [*notes(screen, [_allocator(found)]), Text("")]
    rows = [budget for budget in found.budgets if budget.max_tokens]
    title = Text("Token budget of a micro-batch on each GPU", "bold")
    meanings = hanging(screen, [(f"{one.counting}: {COUNTED[one.counting]}", "dim") for one in rows])
    if screen.narrow:
        texts = [
            (
                f"{one.counting}: {one.max_tokens:,}; longest sample {one.longest_sample:,}; fullest"
                f" {one.fullest.samples} × {one.fullest.length:,}, {gib(one.estimate.device_total_bytes)} GiB",
                "",
            )
            for one in rows
        ]
        return [*above, title, hanging(screen, texts), meanings]
    table = simple_table(
        "counted", ("most tokens", "right"), ("longest sample", "right"), ("fullest batch", "right"), ("GiB", "right")
    )
    for one in rows:
        table.add_row(
            one.counting,
            f"{one.max_tokens:,}",
            f"{one.longest_sample:,}",
            screen.text(f"{one.fullest.samples} × {one.fullest.length:,}"),
            gib(one.estimate.device_total_bytes),
        )
    return [*above, title, indented(table), meanings]
