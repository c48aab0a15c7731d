"""`vramplan compare`: two jobs side by side in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.memory.estimate import Estimate
from vramplan.planner.compare import Comparison, Row, Side
from vramplan.render.figures import CATEGORIES, NEED, banded, free_gib, parts, signed
from vramplan.render.terminal import Answer, Screen, hanging, notes
from vramplan.units import GiB, format_count

PEAKS = {"allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes"}
"""PyTorch's own peaks by their names."""
MOST_TENSORS = 8
"""Tensors that are shown, those that differ most."""


def answer(comparison: Comparison) -> Answer:
    """Verdicts, memory by category, the tensors that differ most, and the settings that differ."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        shown: list[RenderableType] = [
            _table(screen, "", _titles(comparison), _verdicts(comparison)),
            Text(""),
            _table(screen, "GiB", [*_titles(comparison), "difference"], _sizes(comparison)),
        ]
        if comparison.terms:
            head = Text("What differs most at the peak, GiB", style="bold")
            tensors = _tensors(comparison.terms[:MOST_TENSORS])
            shown += [Text(""), head, _table(screen, "", ["first", "second", "difference"], tensors)]
        shown.append(Text(""))
        if comparison.job:
            settings = [(name, *map(_text, values)) for name, values in comparison.job.items()]
            shown.append(_table(screen, "Settings that differ", _titles(comparison), settings))
        else:
            shown.append(screen.text("All settings of the job are the same."))
        for side in comparison.sides:
            shown += notes(screen, side.estimate.notes, f"Note, {side.title}")
        return shown

    return Answer(lay_out)


Cells = tuple[str | Text, ...]


def _titles(comparison: Comparison) -> list[str]:
    return [side.title for side in comparison.sides]


def _table(screen: Screen, first: str, others: Sequence[str], rows: Iterable[Cells]) -> RenderableType:
    """Rows as a table; on a narrow screen as lines, where a table would break words."""
    if screen.narrow:
        titles = [screen.text(f"{first}: " if first else "", "bold"), screen.text(", ".join(others), "bold")]
        return Group(Text.assemble(*titles), hanging(screen, [(_line(row), "") for row in rows]))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold", max_width=34)
    for name in others:
        table.add_column(screen.text(name), justify="right", overflow="fold", max_width=23)
    for row in rows:
        bold = row[0] == NEED
        cells = [cell if isinstance(cell, Text) else screen.text(cell) for cell in row]
        table.add_row(*cells, style="bold" if bold else "dim" if row[0] in PEAKS else "")
    return table


def _line(row: Cells) -> str:
    """A row in words: what it is of, both sides, the difference."""
    name, *cells = (cell.plain if isinstance(cell, Text) else cell for cell in row)
    both = ", ".join(cell or "0" for cell in cells[:2])
    rest = f" ({cells[2]})" if len(cells) > 2 and cells[2] else ""
    return f"{name}: {both}{rest}" if name else f"{both}{rest}"


def _verdicts(comparison: Comparison) -> list[Cells]:
    estimates = [side.estimate for side in comparison.sides]
    return [
        ("", *(_verdict(side) for side in comparison.sides)),
        ("model", *(estimate.model for estimate in estimates)),
        ("GPU", *(side.card.title for side in comparison.sides)),
        ("headroom, GiB", *(free_gib(estimate.headroom_bytes) for estimate in estimates)),
        ("parameters", *(format_count(estimate.num_parameters) for estimate in estimates)),
        ("trainable parameters", *(format_count(estimate.num_trainable_parameters) for estimate in estimates)),
        (
            "micro-batch x accumulation",
            *(f"{estimate.micro_batch_size} x {estimate.gradient_accumulation_steps}" for estimate in estimates),
        ),
        ("peak in", *(estimate.peak_phase for estimate in estimates)),
        ("step takes", *(_time(estimate) for estimate in estimates)),
    ]


def _time(estimate: Estimate) -> str:
    time = estimate.step_time
    return "not known" if time is None else banded(time.seconds, time.relative_error)


def _verdict(side: Side) -> Text:
    if side.fits:
        return Text("fits", style="bold green")
    if side.estimate.fits_without_margin:
        return Text("fits only without margin", style="bold yellow")
    return Text("does not fit", style="bold red")


def _sizes(comparison: Comparison) -> list[Cells]:
    """Memory by category, which adds up to the need of the GPU, and PyTorch's own peaks."""
    sides = [parts(side.estimate) for side in comparison.sides]
    sizes = [dict(categories) for categories, _ in sides]
    rows: list[Cells] = []
    for category, (name, _) in CATEGORIES.items():
        first, second = (side.get(category, 0) for side in sizes)
        if first or second:
            rows.append((name, *_hundredths(first, second)))
    rows.append((NEED, *_hundredths(*(need for _, need in sides))))
    for label, name in PEAKS.items():
        first, second = (round(getattr(side.estimate, name) * 100 / GiB) for side in comparison.sides)
        rows.append((label, *_hundredths(first, second)))
    return rows


def _hundredths(first: int, second: int) -> tuple[str, str, str]:
    """Two sizes in hundredths of a GiB, and their difference as printed."""
    difference = f"{(second - first) / 100:+.2f}" if first != second else ""
    return f"{first / 100:.2f}", f"{second / 100:.2f}", difference


def _tensors(rows: Iterable[Row]) -> list[Cells]:
    return [
        (row.label, *(f"{size / GiB:.2f}" if size else "" for size in row.bytes), signed(row.difference))
        for row in rows
    ]


def _text(value: Any) -> str:
    return "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


__all__ = ["answer"]
