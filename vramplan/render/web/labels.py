"""Labels of a bar's parts, laid out for bars of several widths, of which the style shows the one that suits the page.

Texts stand at shares of the width, so one fragment needs no script: a layout for one width has room in every wider bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from vramplan.dataclass import dataclass

WIDTHS = (288, 440, 700, 1000)
"""Pixels from which on a layout is shown, up to the next; style.css has the same."""
LETTER = 6.7
"""Pixels of a letter on average, at 12 pixels."""
DOT, GAP, LINE, FIRST = 15, 12, 16, 12
"""Pixels: a square with its space, the space between labels, a line of text, the first line's distance from the bar."""
SLIVER = 4
"""Pixels below which a part shares the label of its neighbour."""
FAR = 140
"""Pixels that a label may stand aside from its part, at most."""


@dataclass(frozen=True, slots=True)
class Label:
    """What is written about one part of the bar, or about neighbours that are too narrow for labels of their own."""

    names: tuple[str, ...]
    hundredths: int
    """Of a GiB."""
    colours: tuple[str, ...]
    group: str
    start: float
    """Where the part begins, as a share of the bar."""
    share: float
    room: float
    """The share that no line crosses, from the part's beginning."""

    @property
    def text(self) -> str:
        """The names and the size."""
        return f"{', '.join(self.names)} {self.hundredths / 100:.2f}"

    @property
    def middle(self) -> float:
        """Where a line to the label begins, as a share of the bar."""
        return self.start + self.share / 2

    @property
    def pixels(self) -> float:
        """The length of the text with its squares."""
        return len(self.text) * LETTER + DOT * len(self.colours) + GAP

    def is_inside(self, width: float) -> bool:
        """Whether the part is wide enough for the text (bold, 8 pixels from the edge)."""
        return self.room * width >= len(self.text) * (LETTER + 0.5) + 16

    def joined(self, other: Label) -> Label:
        """One label for both."""
        return Label(
            self.names + other.names, self.hundredths + other.hundredths, self.colours + other.colours, self.group,
            self.start, other.start + other.share - self.start, 0,
        )  # fmt: skip


class Spot(NamedTuple):
    """Where a label stands, in pixels of the width it was laid out for."""

    label: Label
    end_of_line: float
    """Where the line from the part ends: at a square, or above the text."""
    row: int
    left: float
    right: float
    """Where the next label may begin."""
    is_before: bool = False
    """Whether the text stands left of its squares."""


def labels_below(parts: Sequence[Label], width: int) -> str:
    """The labels that have no room inside, as HTML, each with a line from its part."""
    if not outside(parts, width):
        return ""
    spots = in_a_row(outside(parts, width), width) or in_rows(parts, width)
    height = FIRST + LINE * (1 + max(spot.row for spot in spots))
    lines = "".join(
        f"M{spot.label.middle * width:.1f} 0L{spot.end_of_line:.1f} {FIRST + spot.row * LINE + 3}" for spot in spots
    )
    texts = "".join(_html(spot, width) for spot in spots)
    return (
        f'<div class="labels at-{width}" style="height:{height}px"><svg viewBox="0 0 {width} {height}"'
        f' preserveAspectRatio="none" aria-hidden="true"><path d="{lines}"/></svg>{texts}</div>'
    )


def outside(parts: Sequence[Label], width: float, least: float = SLIVER) -> list[Label]:
    """What needs a label below; parts of fewer pixels share that of the part before in their group, or else after."""
    found: list[Label] = []
    is_next = False
    for part in parts:
        if part.is_inside(width):
            is_next = False
            continue
        before = found[-1] if is_next and found[-1].group == part.group else None
        if before is not None and min(before.share, part.share) * width < least:
            found[-1] = before.joined(part)
        else:
            found.append(part)
        is_next = True
    return found


def in_a_row(below: Sequence[Label], width: float) -> list[Spot]:
    """All labels in one line, pushed apart as little as possible; none if one would stand too far from its part."""
    stacks: list[list[Label]] = []
    for label in below:
        stacks.append([label])
        while len(stacks) > 1 and _left(stacks[-2], width) + _length(stacks[-2]) > _left(stacks[-1], width):
            last = stacks.pop()
            stacks[-1] += last
    spots = []
    for stack in stacks:
        left = _left(stack, width)
        for label in stack:
            right = left + label.pixels
            spots.append(Spot(label, left + DOT / 2, 0, left, right))
            left = right
    is_near = all(abs(spot.label.middle * width - spot.end_of_line) <= FAR for spot in spots)
    return spots if is_near and spots[-1].right <= width + GAP and spots[0].left >= 0 else []


def _length(stack: Sequence[Label]) -> float:
    return sum(label.pixels for label in stack)


def _left(stack: Sequence[Label], width: float) -> float:
    """Where labels that touch begin, so that they are as near to their parts as they can be, and inside the width."""
    left, wanted = 0.0, 0.0
    for label in stack:
        wanted += label.middle * width - DOT / 2 - left
        left += label.pixels
    return max(0.0, min(wanted / len(stack), width + GAP - left))


def in_rows(parts: Sequence[Label], width: float) -> list[Spot]:
    """Labels in lines, straight below their parts: the arrangement in which least is amiss, and of those the lowest."""
    tried: list[tuple[list[Spot], int]] = []
    for least in (SLIVER, 0):
        below = outside(parts, width, least)
        tried += [hanging(below, width, side) for side in (0, 1, 2)]
        if not all(amiss for _, amiss in tried):
            break
    return min(tried, key=lambda found: (found[1], max(spot.row for spot in found[0])))[0]


def hanging(below: Sequence[Label], width: float, side: int) -> tuple[list[Spot], int]:
    """(labels, what is amiss), each in the first line where nothing is in its way.

    Amiss is a line that passes behind a text (2), and a text that was moved because it would leave the bar (1).

    Args:
        below: the labels, from the left.
        width: pixels.
        side: 0 if all texts end at their lines, 1 if all begin there, 2 if they end there where there is room.
    """
    before = [label for label in below if side == 0 or (side == 2 and _before(label, width) > 0)]
    after = [label for label in reversed(below) if label not in before]
    spots: list[Spot] = []
    amiss = 0
    for label in (*before, *after):
        middle, length = label.middle * width, label.pixels
        is_before = label in before
        wanted = _before(label, width) if is_before else middle - DOT / 2
        left = max(0.0, min(wanted, width + GAP - length))
        is_moved = abs(left - wanted) > DOT / 2
        spot = Spot(label, middle, 0, left, left + length, is_before and not is_moved)
        row = next((row for row in range(len(below)) if _is_free(spot, row, spots)), None)
        amiss += 2 * (row is None) + is_moved
        spots.append(spot._replace(row=1 + max(spot.row for spot in spots) if row is None else row))
    return spots, amiss


def _before(label: Label, width: float) -> float:
    """Where a text begins that ends at its line."""
    return label.middle * width + DOT / 2 + GAP - label.pixels


def _is_free(new: Spot, row: int, spots: Sequence[Spot]) -> bool:
    """Whether a label in this line, and the line to it, meet no other."""
    for spot in spots:
        if spot.row == row and new.left < spot.right and spot.left < new.right:
            return False
        if spot.row < row and spot.left <= new.end_of_line <= spot.right - GAP:
            return False
        if spot.row > row and new.left <= spot.end_of_line <= new.right - GAP:
            return False
    return True


def _html(spot: Spot, width: float) -> str:
    """A label that keeps its distance from the end of its line in wider bars."""
    dots = "".join(f'<i class="{colour}"></i>' for colour in spot.label.colours)
    text, share, top = escape(spot.label.text), spot.end_of_line / width, FIRST + spot.row * LINE
    if spot.is_before:
        place = f"right:max(0px,{1 - share:.2%} - {spot.right - GAP - spot.end_of_line:.0f}px)"
        return f'<span class="before" style="{place};top:{top}px">{text}{dots}</span>'
    place = f"left:max(0px,{share:.2%} - {spot.end_of_line - spot.left:.0f}px)"
    return f'<span style="{place};top:{top}px">{dots}{text}</span>'


def titles_above(parts: Sequence[Label], gpu: Sequence[str], limit: float, width: int) -> str:
    """The GPU's name at its end, and those of the groups where they have room, as HTML.

    Args:
        parts: the parts of the bar.
        gpu: what is written about the GPU, the most important last.
        limit: where the GPU ends, as a share of the bar.
        width: pixels of the bar.
    """
    text = ", ".join(gpu if width >= WIDTHS[2] else gpu[-2:])
    length = len(text) * (LETTER + 0.5)
    right = min(1.0, limit + length / 2 / width) if limit < 1 else 1.0
    taken = [(right * width - length, right * width)]
    shown = [f'<b style="right:{1 - right:.2%}">{escape(text)}</b>']
    for group in dict.fromkeys(part.group for part in parts):
        inside = [part for part in parts if part.group == group]
        text = f"{group} {sum(part.hundredths for part in inside) / 100:.2f}"
        begin, end = inside[0].start * width, inside[0].start * width + len(text) * LETTER
        if end <= width and all(end + GAP < left or right + GAP < begin for left, right in taken):
            taken.append((begin, end))
            shown.append(f'<span style="left:{inside[0].start:.2%}">{escape(text)}</span>')
    return f'<div class="titles at-{width}">{"".join(shown)}</div>'
