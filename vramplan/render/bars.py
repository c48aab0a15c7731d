"""Bars of a terminal, as text of a given number of columns, in Unicode or ASCII."""

from __future__ import annotations

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉"
FULL = "█"
USED, FREE, MARGIN, LIMIT, BEYOND = "━", "─", "╌", "┃", "╍"
ASCII = {USED: "#", FREE: ".", MARGIN: "~", LIMIT: "|", BEYOND: "!", FULL: "#"}


def _drawn(cells: list[tuple[str, int, str]], ascii_only: bool) -> Text:
    text = Text(no_wrap=True)
    for character, count, style in cells:
        text.append((ASCII[character] if ascii_only else character) * max(0, count), style)
    return text


def level_bar(need: int, capacity: int, margin: int, columns: int, style: str, ascii_only: bool) -> Text:
    """How full a GPU is.

    If the need is within the capacity, the bar is the capacity: used, free, safety margin. If it is beyond, the bar is
    the need, and the capacity is a mark inside.
    """
    if need > capacity:
        limit = min(columns - 2, round(capacity / need * columns))
        return _drawn([(USED, limit, ""), (LIMIT, 1, style), (BEYOND, columns - limit - 1, style)], ascii_only)
    used = min(columns, max(1, round(need / capacity * columns)))
    kept = min(columns - used, max(1, round(margin / capacity * columns)) if margin else 0)
    return _drawn([(USED, used, style), (FREE, columns - used - kept, "dim"), (MARGIN, kept, "dim")], ascii_only)


def size_bar(size: int, largest: int, columns: int, ascii_only: bool) -> Text:
    """One size against the largest, in eighths of a column; the smallest of all still shows."""
    if ascii_only:
        return Text("#" * round(size / largest * columns) or ".", "cyan", no_wrap=True)
    eighths = max(1, round(size / largest * columns * 8))
    return Text((FULL * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip(), "cyan", no_wrap=True)
