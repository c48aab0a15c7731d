"""Bars of a terminal: stacked where there are several parts, in ASCII where the output takes no other characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

FULL, EMPTY, THIN, BLANK = 0, 1, 2, 3
BLOCKS = ("█", "░", "▏", " ")
ASCII = ("#", ".", "|", " ")


@dataclass(frozen=True, slots=True)
class Bar:
    """Cells of one kind after another; what each looks like is settled where it is printed."""

    parts: tuple[tuple[int, str, int], ...]
    """Cells, style, and which character."""

    @property
    def width(self) -> int:
        """Cells in all."""
        return sum(cells for cells, _, _ in self.parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        characters = ASCII if options.ascii_only else BLOCKS
        room, done, drawn = min(self.width, options.max_width), 0, 0
        text = Text(no_wrap=True)
        for cells, style, kind in self.parts:
            done += cells
            end = round(done / self.width * room) if self.width else 0
            text.append(characters[kind] * (end - drawn), style)
            drawn = end
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, min(self.width, options.max_width))  # a narrow terminal keeps the figures beside it


def peft_expert_pattern(sizes: Sequence[tuple[int, str]], capacity: int, width: int) -> Bar:
    """Sizes on top of each other in their styles, in all as long as their sum, and the rest of the card."""
    parts, done, filled = [], 0, 0
    for size, style in sizes:
        done += size
        end = min(width, round(done / capacity * width))
        parts.append((end - filled, style, FULL))
        filled = end
    return Bar((*parts, (width - filled, "bright_black", EMPTY)))


def fullness(used: int, capacity: int, width: int) -> Bar:
    """How full a card is; its colour warns."""
    share = used / capacity
    filled = min(width, round(share * width))
    style = "red" if share > 1 else "yellow" if share > 0.92 else "green"
    return Bar(((filled, style, FULL), (width - filled, "bright_black", EMPTY)))


def plain(size: int, scale: int, width: int, style: str) -> Bar:
    """One size; the least of it shows."""
    cells = round(size / scale * width)
    return Bar(((cells, style, FULL),) if cells else ((1, style, THIN),))


def alike(bars: Sequence[Bar]) -> list[Bar]:
    """All as wide as the widest, so that what shortens one shortens each."""
    most = max((one.width for one in bars), default=0)
    return [Bar((*one.parts, (most - one.width, "", BLANK))) for one in bars]
