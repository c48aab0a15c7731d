"""Changes of a configuration for a terminal, each with the line of the script where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from vramplan.planner.named_changes import is_of_environment
from vramplan.planner.search_result import LeverEffect
from vramplan.planner.verdict import Verdict
from vramplan.render.figures import gib
from vramplan.render.script_lines import with_line
from vramplan.render.terminal import (
    Screen,
    hanging,
    indented,
    inside,
    simple_table,
)

NEVER_EDITED = ("torchtitan",)
"""Frameworks whose configuration `--fix` does not write, besides those in Python."""
MOST_CHANGE = 50
"""Columns of a change with the line of the script where it stands."""
MOST_COST = 20
"""Columns of what a change costs."""
MOST_BOX_SETTINGS = 3
"""Settings of a way out that have room in the box."""


def writes(verdict: Verdict) -> list[Text]:
    """That `--fix` writes the changes, if there are any and it edits what was given."""
    change = verdict.nearest_change
    if verdict.reading.spelling == "python" or verdict.reading.framework in NEVER_EDITED:
        return []
    if verdict.plan is None and change is None:
        return []
    if verdict.plan is None and change is not None and is_of_environment(change):
        return [Text("--fix looks for changes without the environment", "dim")]
    return [Text("--fix writes it", "dim")]


def way_lines(screen: Screen, verdict: Verdict, title: str, settings: Sequence[str]) -> Text:
    """What a change does, and its settings, one on a line; those that have no room of their own share the last."""
    single, rest = settings[:MOST_BOX_SETTINGS], settings[MOST_BOX_SETTINGS:]
    lines = [*(setting.split("  ") for setting in single), *([rest] if rest else [])]
    shown = [screen.text(f"  {_placed(verdict, line, inside(screen) - 2)}") for line in lines]
    return Text("\n").join([screen.text(f"{title}:", "bold"), *shown])


def _placed(verdict: Verdict, settings: Sequence[str], width: int) -> str:
    """Settings on one line, with the line of the script where they stand if there is room for it."""
    text, placed = "  ".join(settings), with_line(verdict.reading, settings)
    return placed if cell_len(placed) <= width else text


def changes_table(screen: Screen, verdict: Verdict, advice: list[LeverEffect]) -> Group:
    """Changes, cheapest first, each with the batch that its figure is for."""
    batch = advice[0].batch
    details = [*([f"each with {', '.join(batch)}"] if batch else [])]
    title = Text.assemble(("What would help", "bold"), (f", GiB{''.join(f', {one}' for one in details)}", "dim"))
    changes = [
        [_placed(verdict, [setting], MOST_CHANGE) for setting in counsel.settings] or [f"on {counsel.card}"]
        for counsel in advice
    ]
    if screen.narrow:
        rows = []
        for counsel, change in zip(advice, changes, strict=True):
            verb = "fits" if counsel.fits else "does not fit"
            need = gib(counsel.device_total_bytes)
            rows.append((f"{'  '.join(change)}: {need}, {verb}; costs: {counsel.cost}", ""))
        return Group(title, hanging(screen, rows))
    table = simple_table("change", ("then", "right"), "fits", "costs")
    for counsel, change in zip(advice, changes, strict=True):
        table.add_row(
            Text("\n").join(screen.text(line) for line in change),
            gib(counsel.device_total_bytes),
            Text("yes", "green") if counsel.fits else Text("no", "red"),
            Text(fill(counsel.cost, MOST_COST), "dim"),
        )
    return Group(title, indented(table))


__all__ = ["changes_table", "way_lines", "writes"]
