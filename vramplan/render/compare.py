"""`vramplan compare`: two jobs side by side in 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.planner.compare import Comparison, Row, Side
from vramplan.render.figures import CATEGORIES, free_gib, gib
from vramplan.units import GiB, format_count

TERMS = 8
"""Tensors that are shown, those that differ most."""


def comparison(one: Comparison) -> RenderableType:
    """Figures, memory by category, the tensors that differ most, and what differs in the job."""
    shown: list[RenderableType] = [figures(one), Text(""), sizes(one)]
    if one.terms:
        shown += [Text(""), Text("What differs most at the peak, GiB", style="bold"), tensors(one.terms[:TERMS])]
    shown += [Text(""), settings(one)]
    for side in one.sides:
        shown += [Text(f"Note, {side.title}: {note}", style="yellow") for note in side.estimate.notes]
    return Group(*shown)


def _table(first: str, *rest: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold", max_width=34)
    for name in rest:
        table.add_column(name, justify="right", overflow="fold", max_width=23)
    return table


def figures(one: Comparison) -> Table:
    """What each is, and its verdict."""
    table = _table("", *(side.title for side in one.sides))
    ones = [side.estimate for side in one.sides]
    table.add_row("model", *(each.model for each in ones))
    table.add_row("card", *(side.card.title for side in one.sides))
    table.add_row("", *(_verdict(side) for side in one.sides))
    table.add_row("parameters", *(format_count(each.num_parameters) for each in ones))
    table.add_row("that train", *(format_count(each.num_trainable_parameters) for each in ones))
    table.add_row(
        "micro-batch x accumulation", *(f"{e.micro_batch_size} x {e.gradient_accumulation_steps}" for e in ones)
    )
    table.add_row("peak in", *(each.peak_phase for each in ones))
    table.add_row("free on the card, GiB", *(free_gib(each.headroom_bytes) for each in ones))
    return table


def _verdict(side: Side) -> Text:
    if side.fits:
        return Text("fits", style="bold green")
    return Text("only without margin" if side.estimate.fits_without_margin else "does not fit", style="bold red")


def sizes(one: Comparison) -> Table:
    """Memory by category, and the totals."""
    table = _table("GiB", *(side.title for side in one.sides), "difference")
    for row in one.categories:
        table.add_row(CATEGORIES[row.category][0], *(f"{size / GiB:.2f}" for size in row.bytes), signed(row.difference))
    ones = [side.estimate for side in one.sides]
    for label, name in (("on the card", "device_total_bytes"), ("allocated", "peak_allocated_bytes"),
                        ("reserved", "peak_reserved_bytes")):  # fmt: skip
        first, second = (getattr(each, name) for each in ones)
        style = "bold" if label == "on the card" else "dim"
        table.add_row(label, gib(first), gib(second), signed(second - first), style=style)
    return table


def tensors(rows: list[Row]) -> Table:
    """Terms that differ."""
    table = _table("", "first", "second", "difference")
    for row in rows:
        table.add_row(row.label, *(f"{size / GiB:.2f}" if size else "-" for size in row.bytes), signed(row.difference))
    return table


def settings(one: Comparison) -> RenderableType:
    """What differs in the job."""
    found = one.job
    if not found:
        return Text("The jobs are the same.")
    table = _table("What differs in the job", *(side.title for side in one.sides))
    for name, both in found.items():
        table.add_row(name, *(_said(value) for value in both))
    return table


def _said(value: Any) -> str:
    return "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def signed(num_bytes: int) -> str:
    """GiB with a sign; nothing where there is no difference.

    >>> signed(0), signed(-(1 << 30)), signed(1 << 29)
    ('', '-1.00', '+0.50')
    """
    return f"{num_bytes / GiB:+.2f}" if num_bytes else ""
