"""The terminal: what is printed is laid out for its width and its characters, at any width from 40 columns.

An answer begins with a box: the verdict, the need of the GPU, the batch plan, and what would help. One line of
assumptions follows, then what explains the box. Colours are the terminal's own 16; no fact is told by colour alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from vramplan.dataclass import dataclass
from vramplan.render.bars import level_bar, size_bar
from vramplan.render.figures import (
    NEED,
    filled_by_tokens,
    gib,
    in_short,
    part_name,
    parts,
    product,
    replicas,
    room_gib,
)
from vramplan.render.verdict import SIGNS, Outcome, need_of_capacity, room
from vramplan.units import format_bytes, format_count
from vramplan.visible import visible, visible_lines

if TYPE_CHECKING:
    from vramplan.inputs.job import Job
    from vramplan.memory.estimate import Estimate

NARROW = 60
"""Columns below which a table is told in lines."""
GUTTER, LEAST_RIGHT = 4, 40
"""Columns between two parts that stand side by side, and the fewest of the right one."""
BOX_WIDTH = 80
IN_ASCII = str.maketrans({"×": "x", "✗": "no", "›": ">", "≈": "~", "≥": ">=", "…": "...", "–": "-", "•": "*"})

LOOKS: Mapping[Outcome, tuple[str, str, str]] = {
    outcome: (sign, words.upper(), colour)
    for (outcome, (sign, words)), colour in zip(SIGNS.items(), ("green", "yellow", "yellow", "red"), strict=True)
}
"""Sign, words and colour of each outcome."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What an answer is laid out for."""

    width: int
    ascii_only: bool = False

    @property
    def narrow(self) -> bool:
        """Whether tables have too little room."""
        return self.width < NARROW

    def of(self, width: int) -> Screen:
        """A part of this screen."""
        return replace(self, width=width)

    def text(self, text: str, style: str = "") -> Text:
        """Text in the characters that the output takes; every text from outside passes here."""
        text = visible(text)
        if self.ascii_only:
            text = text.translate(IN_ASCII).encode("ascii", "replace").decode()
        return Text(text, style)


class Answer:
    """What a function of the screen lays out, once the console that prints it is known."""

    def __init__(self, lay_out: Callable[[Screen], Iterable[RenderableType]]) -> None:
        self.lay_out = lay_out

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self.lay_out(Screen(options.max_width, options.ascii_only)))


# -- the console -------------------------------------------------------------------------------------------------------


class SafeConsole(Console):
    """A console that shows control characters in texts, and takes no markup from them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, as they are printed."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible_lines(segment.text)
            yield segment if shown is segment.text else segment._replace(text=shown)


class _AsciiConsole(SafeConsole):
    """A console whose output takes ASCII alone, whatever Python writes it in."""

    @property
    def encoding(self) -> str:
        return "ascii"


def console() -> SafeConsole:
    """The console of standard output: as wide as the terminal, or COLUMNS, or 80."""
    return (_AsciiConsole if _is_c_locale() else SafeConsole)()


def _is_c_locale() -> bool:
    """Whether the user asks for plain ASCII. Python itself takes the C locale for UTF-8 (PEP 538, PEP 540)."""
    if os.environ.get("PYTHONUTF8") == "1" or os.environ.get("PYTHONIOENCODING"):
        return False  # the encoding of the output says it
    whole, characters, language = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if not whole and characters.lower() not in ("", "c", "posix", "c.utf-8", "c.utf8", "utf-8"):
        return False
    return (whole or language) in ("C", "POSIX")


def print_all(*shown: RenderableType) -> None:
    """Print to standard output."""
    out = console()
    for renderable in shown:
        out.print(renderable)


Column = str | tuple[str, Literal["left", "right"]]


def simple_table(*columns: Column) -> Table:
    """A table without lines; a column is left-aligned unless it says otherwise."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        name, side = (column, "left") if isinstance(column, str) else column
        table.add_column(name, justify=side, no_wrap=side == "right", overflow="fold")  # type: ignore[arg-type]
    return table


def indented(renderable: RenderableType) -> Padding:
    """Two columns to the right."""
    return Padding(renderable, (0, 0, 0, 2), expand=False)


def flow(pieces: Sequence[Text], width: int, gap: str = "   ") -> Text:
    """Pieces on one line, or on as many as they need to stay whole."""
    lines: list[Text] = []
    for piece in pieces:
        if lines and lines[-1].cell_len + len(gap) + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], gap, piece)
        else:
            lines.append(piece)
    return Text("\n").join(lines)


def hanging(screen: Screen, texts: Iterable[tuple[str, str]], mark: str = "•") -> Table:
    """A list whose items are (text, style), wrapped behind their mark."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for text, style in texts:
        table.add_row(screen.text(f"  {mark}", style), screen.text(text, style))
    return table


def side_by_side(
    screen: Screen, left: Callable[[Screen], Group], left_width: int, right: Callable[[Screen], Group]
) -> RenderableType:
    """Two parts: beside each other if there is room, else one below the other."""
    rest = screen.width - left_width - GUTTER
    if rest < LEAST_RIGHT:
        return Group(left(screen), Text(""), right(screen))
    grid = Table.grid(padding=(0, GUTTER, 0, 0), pad_edge=False)
    grid.add_column(width=left_width)
    grid.add_column(width=rest)
    grid.add_row(left(screen.of(left_width)), right(screen.of(rest)))
    return grid


# -- parts of answers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """The verdict in a box of at most ten lines; sizes are bytes of the fullest GPU."""

    title: str
    outcome: Outcome
    need_bytes: int
    capacity_bytes: int
    margin_bytes: int
    verdict: str = ""
    """The verdict in words, if it is more than the outcome."""
    reason: str = ""
    """Why it does not fit, if it is not that it needs more than the GPU has."""

    def panel(self, screen: Screen, lines: Sequence[Text]) -> Panel:
        """The box, `lines` below the bar."""
        columns = inside(screen)
        sign, words, colour = LOOKS[self.outcome]
        signed_words = self.verdict or words if screen.ascii_only else f"{sign} {self.verdict or words}"
        need, capacity = need_of_capacity(self.need_bytes, self.capacity_bytes)
        size = Text.assemble((f"{need} GiB", "bold"), f" of {capacity}")
        left = room(self.outcome, self.need_bytes, self.capacity_bytes, self.margin_bytes, self.reason)
        pieces = [screen.text(signed_words, f"bold {colour}"), size, screen.text(left)]
        bar = level_bar(self.need_bytes, self.capacity_bytes, self.margin_bytes, columns, colour, screen.ascii_only)
        title = screen.text(self.title, "bold default")
        above = title.cell_len + 2 <= columns
        return Panel(
            Group(*([] if above else [title]), flow(pieces, columns), bar, *lines),
            box=box.ROUNDED,
            width=columns + 4,
            border_style=colour,
            title=title if above else None,
            title_align="left",
        )


def plan_line(screen: Screen, job: Job, micro_batch_size: int, accumulation_steps: int, smallest: bool = False) -> Text:
    """The batch plan: a product with its legend, or the samples of a step where tokens fill micro-batches."""
    if (filled := filled_by_tokens(job)) is not None:
        return flow([screen.text(filled[0], "bold"), screen.text(filled[1], "dim")], inside(screen))
    names = ("micro", "accum.") if screen.narrow else ("micro-batch", "accumulation")
    factors = " × ".join((*names, replicas(job)))
    legend = f"the smallest: {factors}" if smallest else f"{factors} = {'global' if screen.narrow else 'global batch'}"
    text = product(micro_batch_size, accumulation_steps, job.data_parallel)
    return flow([screen.text(text, "bold"), screen.text(legend, "dim")], inside(screen))


def inside(screen: Screen) -> int:
    """Columns inside the box."""
    return min(BOX_WIDTH, screen.width) - 4


def where_it_goes(estimate: Estimate, detail: str = "") -> Callable[[Screen], Group]:
    """The need of the GPU by category, largest first; the parts add up to it. `detail` says of which case."""

    def lay_out(screen: Screen) -> Group:
        shown, need = parts(estimate)
        names = [part_name(category, estimate.job) for category, _ in shown]
        width = max(map(len, (*names, NEED)))
        room = max(1, screen.width - width - 13)
        rows = []
        for name, (_, size) in zip(names, shown, strict=True):
            row = Text(f"  {name:<{width}}  {size / 100:6.2f}  ", no_wrap=True)
            rows.append(row + size_bar(size, shown[0][1], room, screen.ascii_only))
        rows.append(Text(f"  {NEED:<{width}}  {need / 100:6.2f}", "bold"))
        fullest = [f"GPU {estimate.fullest_card}"] if estimate.cards else []
        details = ["GiB", *([detail] if detail else []), *fullest, f"peak in {estimate.peak_phase}"]
        return Group(Text.assemble(("Where it goes", "bold"), (f", {', '.join(details)}", "dim")), *rows)

    return lay_out


def each_gpu(screen: Screen, estimate: Estimate) -> list[RenderableType]:
    """What each of the GPUs holds and needs that a model is spread over; nothing if it is not."""
    if not estimate.cards:
        return []
    rows: list[RenderableType] = [Text(""), Text("Each GPU, GiB", "bold")]
    if screen.narrow:
        for share in estimate.cards:
            room = (
                f"free {room_gib(estimate.capacity_bytes, share.device_total_bytes)}" if share.fits else "does not fit"
            )
            rows.append(
                screen.text(
                    f"  GPU {share.number}: {share.holds}; weights {gib(share.parameter_bytes)}, allocated"
                    f" {gib(share.peak_allocated_bytes)}, need {gib(share.device_total_bytes)}, {room}"
                )
            )
        return rows
    table = simple_table(
        ("GPU", "right"), "holds", ("weights", "right"), ("allocated", "right"), ("need", "right"), ("free", "right")
    )
    for share in estimate.cards:
        sizes = (share.parameter_bytes, share.peak_allocated_bytes, share.device_total_bytes)
        room = room_gib(estimate.capacity_bytes, share.device_total_bytes) if share.fits else "does not fit"
        table.add_row(
            str(share.number),
            screen.text(share.holds),
            *(gib(size) for size in sizes),
            room,
            style="bold" if share.number == estimate.fullest_card else "",
        )
    return [*rows, indented(table)]


def assumption_line(screen: Screen, estimate: Estimate, *more: str, verbose: bool = False) -> Text:
    """One line of what the user may not have said, and how to see all of it."""
    facts = ", ".join([*more, *in_short(estimate)])
    return screen.text(f"Assumes {facts}{'' if verbose else '; -v lists all'}", "dim")


def notes(screen: Screen, texts: Iterable[str], kind: str = "Note") -> list[Text]:
    """Warnings of an answer, each in a line of its own."""
    return [screen.text(f"{kind}: {text}", "yellow") for text in texts]


def all_assumptions(screen: Screen, estimate: Estimate) -> list[RenderableType]:
    """What -v adds: what PyTorch would report, the phases, the parameters and every assumption."""
    reported = ", ".join(
        f"{name} {gib(size)}"
        for name, size in (
            ("max_memory_allocated", estimate.peak_allocated_bytes),
            ("max_memory_reserved", estimate.peak_reserved_bytes),
            ("nvidia-smi, this process", estimate.device_total_bytes),
        )
    )
    phases = ", ".join(f"{name} {gib(size)}" for name, size in estimate.phases.items())
    count, trained = format_count(estimate.num_parameters), format_count(estimate.num_trainable_parameters)
    texts = [
        f"{estimate.model}: {count} parameters, {trained} of them train"
        if estimate.job.method == "full"
        else f"{estimate.model}: {count} parameters, and {trained} in adapters, which train",
        f"reported by PyTorch and the driver, GiB: {reported}",
        f"allocated at the peak of each phase, GiB: {phases}",
        *estimate.assumptions,
    ]
    return [Text(""), Text("Assumptions and details", "bold"), hanging(screen, [(text, "") for text in texts])]


def held_by_others(estimate: Estimate, held_bytes: int) -> list[str]:
    """Memory that other processes hold on the GPU, which is not in its capacity."""
    return [f"other processes hold {format_bytes(held_bytes)} of {estimate.card_title}"] if held_bytes else []
