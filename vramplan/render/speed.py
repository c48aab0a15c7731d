"""Published training speeds compared with their estimates: `vramplan accuracy --times`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from vramplan.measurements.speed import Order, SpeedRow, Speeds, speed_summary
from vramplan.render.accuracy import settings_text
from vramplan.render.terminal import Answer, Screen, simple_table
from vramplan.units import counted

HEADS = ("group", "settings", "runs", "median", "P95", "signed", "pairs", "in order")
"""Median and P95 of the absolute errors, median of the errors with their sign; pairs of plans, and the share whose
faster plan is named."""
ALL = "all groups"


def lines(speeds: Speeds) -> list[list[str]]:
    """The cells of the table: a line for all groups first, then each group, by whether all settings are known."""
    return [_line(group, complete, rows, order) for group, complete, rows, order in _parts(speeds)]


def _parts(speeds: Speeds) -> list[tuple[str, bool, list[SpeedRow], Order | None]]:
    grouped: dict[tuple[str, bool], list[SpeedRow]] = {}
    for row in speeds.rows:
        for group in (ALL, row.group):
            grouped.setdefault((group, row.complete), []).append(row)
    pairs = sum(order.pairs for order in speeds.orders.values())
    right = sum(order.right for order in speeds.orders.values())
    orders = speeds.orders | ({ALL: Order(pairs, right)} if pairs else {})
    keys = sorted(grouped, key=lambda key: (key[0] != ALL, key[0], not key[1]))
    return [
        (group, complete, grouped[group, complete], orders.get(group) if complete else None) for group, complete in keys
    ]


def _line(group: str, complete: bool, rows: list[SpeedRow], order: Order | None) -> list[str]:
    errors = speed_summary(rows)
    return [
        group,
        settings_text(complete),
        str(errors.count),
        f"{errors.median:.1%}",
        f"{errors.p95:.1%}",
        f"{errors.signed_median:+.1%}",
        str(order.pairs) if order else "",
        f"{order.share:.1%}" if order else "",
    ]


def speeds(speeds: Speeds) -> Answer:
    """`vramplan accuracy --times` for a terminal."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        parts: list[RenderableType] = [Text("Step times published by others", style="bold")]
        if screen.narrow:
            for group, known, *figures in lines(speeds):
                named = [f"{name} {figure}" for name, figure in zip(HEADS[2:], figures, strict=True) if figure]
                parts += [screen.text(f"{group}, settings: {known}"), Text(f"    {', '.join(named)}", "dim")]
        else:
            table = simple_table(*HEADS[:2], *((name, "right") for name in HEADS[2:]))
            for group, *cells in lines(speeds):
                table.add_row(screen.text(group), *cells)
            parts.append(table)
        if speeds.left_out:
            parts.append(Text(f"{counted(len(speeds.left_out), 'estimate')} failed:", style="yellow"))
            parts += [screen.text(f"  {reason}", "dim") for reason in speeds.left_out]
        parts.append(Text(""))
        for group, unknown in speeds.unknown.items():
            if unknown:
                parts.append(screen.text(f"{group}: ", "bold") + screen.text("; ".join(unknown), "not bold dim"))
        return parts

    return Answer(lay_out)


def markdown(speeds: Speeds) -> str:
    """The same table as Markdown."""
    text = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    return "\n".join([*text, *(f"| {' | '.join(cells)} |" for cells in lines(speeds))]) + "\n"
