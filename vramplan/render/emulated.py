"""Estimates beside runs on emulated GPUs: `vramplan accuracy --emulated`, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.inputs.job import Job
from vramplan.measurements.emulated import KINDS, Emulated, EmulatedRow, EmulatedRun, by_kind, worst
from vramplan.render.accuracy import markdown_table
from vramplan.units import counted

HEADS = (
    "by", "", "runs", "allocated: median", "worst", "reserved: median", "worst"
)  # fmt: skip
LISTED = 8
"""Runs that are listed for each figure."""


def lines(emulated: Emulated) -> list[list[str]]:
    """The cells of the table: all runs, and the runs by each of their kinds."""
    cells = [["all runs", "", *_cells(emulated.runs)]]
    for kind in KINDS:
        cells += [[kind, name, *_cells(runs)] for name, runs in by_kind(emulated.runs, kind).items()]
    return cells


def _cells(runs: Sequence[EmulatedRow]) -> list[str]:
    cells = [str(len(runs))]
    for metric in ("allocated", "reserved"):
        errors = [row.error for run in runs for row in run.rows if row.metric == metric]
        cells += [f"{median(map(abs, errors)):.2%}", f"{max(errors, key=abs):+.2%}"] if errors else ["", ""]
    return cells


def verdict(emulated: Emulated) -> str:
    """Wrong verdicts and searches, in one sentence."""
    wrongly_fits = sum(run.said and not run.ran for run in emulated.runs)
    wrongly_not = sum(run.ran and not run.said for run in emulated.runs)
    parts = [
        f"Of {counted(len(emulated.runs), 'run')} (PyTorch {', '.join(emulated.torch)})"
        f" {wrongly_fits} wrongly fit and {wrongly_not} wrongly do not"
    ]
    if emulated.searches:
        equal = sum(one.chosen == one.largest for one in emulated.searches)
        larger = sum(one.chosen > one.largest for one in emulated.searches)
        parts.append(
            f"the largest micro-batch is equal in {equal} of {len(emulated.searches)}"
            f" {'search' if len(emulated.searches) == 1 else 'searches'},"
            f" larger in {larger}"
        )
    return "; ".join(parts) + "."


def exceptions(emulated: Emulated) -> list[str]:
    """The largest errors, the wrong verdicts and the searches that differ, a line each."""
    lines = []
    for metric in ("allocated", "reserved"):
        pairs = worst(emulated.runs, metric, LISTED)
        lines += [f"{error:+.2%} {metric}: {_described(run.run)}" for run, error in pairs]
    for run in emulated.runs:
        if run.said != run.ran:
            lines.append(f"{'ran' if run.ran else 'ran out of memory'}, estimated otherwise: {_described(run.run)}")
    for search in emulated.searches:
        if search.chosen != search.largest:
            lines.append(f"{search.largest} run, {search.chosen} estimated: {_described(search.run)}")
    return lines


def _described(run: EmulatedRun) -> str:
    """The run with its settings that differ from the defaults."""
    defaults = Job().model_dump(mode="json")
    settings = " ".join(f"{name}={value}" for name, value in run.job.items() if defaults.get(name) != value)
    return f"{run.title} {settings}"


def markdown(emulated: Emulated) -> str:
    """The verdicts and the table as Markdown."""
    text = f"{verdict(emulated)}\n\n{markdown_table(HEADS, lines(emulated))}"
    if emulated.left_out:
        text += f"\nNot compared: {'; '.join(emulated.left_out)}.\n"
    return text


def emulated(emulated: Emulated) -> RenderableType:
    """`vramplan accuracy --emulated`."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False, collapse_padding=True)
    for number, name in enumerate(HEADS):
        table.add_column(name, justify="right" if number > 1 else "left", overflow="fold")
    for row in lines(emulated):
        table.add_row(*row)
    parts: list[RenderableType] = [Text(verdict(emulated), style="bold"), Text(""), table]
    parts += [Text(""), Text("Largest differences", style="bold"), *(Text(line) for line in exceptions(emulated))]
    parts += [Text(f"Not compared: {reason}", style="dim") for reason in emulated.left_out]
    return Group(*parts)
