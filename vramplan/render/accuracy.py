"""How far estimates were off: `vramplan accuracy`, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from vramplan.measurements.accuracy import Accuracy, Row, Verdict, summary
from vramplan.units import counted

COLUMNS = ("runs", "median", "P95", "worst", "too low")
NARROW_COLUMNS = ("runs", "median", "worst")
"""Shown on a terminal of less than :data:`WIDE` columns."""
WIDE = 60
PUBLISHED_HEADS = ("group", "metric", "grade", "settings")


def groups(rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the line of a table that they are shown in."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(key(row), []).append(row)
    return grouped


def _cells(rows: list[Row]) -> list[str]:
    errors = summary(rows)
    return [
        str(errors.count), f"{errors.median:+.2%}", f"{errors.p95:.2%}", f"{errors.worst:+.2%}", f"{errors.too_low:.0%}"
    ]  # fmt: skip


def settings_text(complete: bool) -> str:
    """Whether all settings of a published run are known, as tables say it."""
    return "all known" if complete else "some unknown"


def lines(accuracy: Accuracy) -> tuple[list[list[str]], list[list[str]]]:
    """The cells of the two tables: the ledger, the published runs."""
    ledger = groups(accuracy.rows, lambda row: (row.group, row.by, row.metric))
    several = len({row.by for row in accuracy.published}) > 1 or any(row.by != "analytic" for row in accuracy.published)
    published = groups(
        accuracy.published,
        lambda row: (
            f"{row.group}, {row.by}" if several else row.group,
            row.metric,
            row.grade,
            settings_text(row.complete),
        ),
    )
    by_table = ledger, published
    first, second = ([[*key, *_cells(rows)] for key, rows in table.items()] for table in by_table)
    return first, second


def confusion(verdicts: Iterable[Verdict], with_margin: bool) -> dict[tuple[bool, bool], int]:
    """Number of runs by (the estimate fits, the run ran)."""
    counts = dict.fromkeys(((True, True), (True, False), (False, True), (False, False)), 0)
    for one in verdicts:
        said = one.said if with_margin or one.said_without_margin is None else one.said_without_margin
        counts[said, one.ran] += 1
    return counts


CONFUSION_HEADS = ("published runs on a GPU that is named", "ran", "ran out of memory")


def confusion_lines(accuracy: Accuracy) -> list[list[str]]:
    """The cells of the table of verdicts: said to fit or not, with the safety margin and without."""
    cells = []
    for with_margin, name in ((True, "with the margin"), (False, "without")):
        counts = confusion(accuracy.published_verdicts, with_margin)
        for said, text in ((True, "fits"), (False, "does not fit")):
            cells.append([f"{text}, {name}", str(counts[said, True]), str(counts[said, False])])
    return cells


def verdicts(accuracy: Accuracy) -> str:
    """Wrong verdicts and chosen micro-batches, as text."""
    texts = []
    if accuracy.verdicts:
        wrongly_fits = sum(verdict.said and not verdict.ran for verdict in accuracy.verdicts)
        wrongly_not = sum(verdict.ran and not verdict.said for verdict in accuracy.verdicts)
        texts.append(
            f"{counted(len(accuracy.verdicts), 'verdict')}: {wrongly_fits} wrongly fit, {wrongly_not} wrongly do not"
        )
    for choice in accuracy.choices:
        texts.append(f"largest micro-batch {choice.largest}, chosen {choice.chosen}: {choice.run}")
    return "; ".join(texts)


def accuracy(accuracy: Accuracy) -> RenderableType:
    """`vramplan accuracy`."""
    ledger, published = lines(accuracy)
    parts: list[RenderableType] = [
        Text(
            f"{counted(accuracy.runs, 'measured run')} in the ledger"
            if accuracy.runs
            else "No measured run is in the ledger yet.",
            style="bold",
        )
    ]
    if ledger:
        parts.append(ErrorTable(("GPU", "by", "metric"), ledger))
    if verdicts(accuracy):
        parts.append(Text(verdicts(accuracy)))
    if accuracy.left_out:
        parts.append(Text(f"{counted(len(accuracy.left_out), 'estimate')} failed:", style="yellow"))
        parts += [Text(f"  {reason}", style="dim") for reason in dict.fromkeys(accuracy.left_out)]
    if accuracy.runs:
        parts.append(Text(""))
    if published:
        parts += [
            Text("Published by others", style="bold"),
            ErrorTable(PUBLISHED_HEADS, published),
            Text(""),
            _small_table(CONFUSION_HEADS, confusion_lines(accuracy)),
            Text(""),
        ]
        for group, unknown in accuracy.unknown.items():
            if unknown:
                parts.append(Text(f"{group}: ", style="bold") + Text("; ".join(unknown), style="not bold dim"))
    return Group(*parts)


class ErrorTable:
    """A table of errors; narrow terminals show fewer columns."""

    def __init__(self, heads: tuple[str, ...], rows: list[list[str]]) -> None:
        self.heads, self.rows = heads, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = COLUMNS if options.max_width >= WIDE else NARROW_COLUMNS
        table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False, collapse_padding=True)
        heads = self.heads if options.max_width >= WIDE else (", ".join(self.heads),)
        for name in heads:
            table.add_column(name, overflow="fold")
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            labels, cells = row[: len(self.heads)], dict(zip(COLUMNS, row[len(self.heads) :], strict=True))
            shown = labels if options.max_width >= WIDE else [", ".join(labels)]
            table.add_row(*shown, *(cells[name] for name in columns))
        yield table


def _small_table(heads: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False, collapse_padding=True)
    for number, name in enumerate(heads):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def markdown(accuracy: Accuracy, part: str = "") -> str:
    """The same as Markdown: the ledger's table, the published runs', the verdicts, or all."""
    ledger, published = lines(accuracy)
    tables = []
    if part in ("", "ledger"):
        tables.append(
            _markdown(("GPU", "by", "metric"), ledger) if ledger else "No run of our own is in the ledger yet.\n"
        )
    if part in ("", "published") and published:
        tables.append(_markdown(PUBLISHED_HEADS, published))
    if part in ("", "verdicts") and accuracy.published_verdicts:
        tables.append(markdown_table(CONFUSION_HEADS, confusion_lines(accuracy)))
    return "\n".join(tables)


def _markdown(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    return markdown_table((*heads, *COLUMNS), rows)


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    columns = list(heads)
    text = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*text, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
