"""Where the memory goes, as a bar whose parts add up to the need of the GPU."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vramplan.render.figures import free_gib, gib, part_name, parts
from vramplan.render.web.colours import COLOURS, GROUPS
from vramplan.render.web.labels import WIDTHS, Label, labels_below, titles_above
from vramplan.units import GiB

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate


def bar(estimate: Estimate) -> str:
    """The bar as HTML, its parts' labels inside or below; beyond the GPU's line if it needs more than there is."""
    need_bytes, capacity_bytes = estimate.device_total_bytes, estimate.capacity_bytes
    whole = max(need_bytes, capacity_bytes)
    named = labels_of(estimate)
    inside = [_part(label) for label in named]
    margin_bytes = min(estimate.margin_bytes, max(0, capacity_bytes - need_bytes))
    free_bytes = max(0, capacity_bytes - need_bytes - margin_bytes)
    gpu = []
    for name, size, text in (("free", free_bytes, free_gib(free_bytes)), ("margin", margin_bytes, gib(margin_bytes))):
        if size:
            inside.append(f'<i class="{name}" style="flex:{size / whole:.5f}"></i>')
            gpu.append(f"{name} {text}")
    limit = capacity_bytes / whole
    if limit < 1:
        inside.append(f'<i class="limit" style="left:{limit:.3%}"></i>')
    gpu.append(f"GPU {free_gib(capacity_bytes)}")
    above = "".join(titles_above(named, gpu, limit, width) for width in WIDTHS)
    below = "".join(labels_below(named, width) for width in WIDTHS)
    return f'<div class="parts">{above}<div class="bar">{"".join(inside)}</div>{below}</div>'


def labels_of(estimate: Estimate) -> list[Label]:
    """The parts in the order of all pictures; their sizes add up to the need of the GPU."""
    hundredths = dict(parts(estimate)[0])
    whole_bytes = max(estimate.device_total_bytes, estimate.capacity_bytes)
    limit = estimate.capacity_bytes / whole_bytes
    named, start = [], 0.0
    for category, colour in COLOURS.items():
        size = hundredths.get(category, 0)
        if size > 0:
            share = size * GiB / 100 / whole_bytes
            room = limit - start if start < limit < start + share else share
            names = (part_name(category, estimate.job),)
            named.append(Label(names, size, (colour,), GROUPS[category], start, share, room))
            start += share
    return named


def _part(label: Label) -> str:
    """A part of the bar, with its label inside wherever the bar is wide enough for it."""
    text = escape(label.text)
    wide = next((width for width in WIDTHS if label.is_inside(width)), None)
    shown = "" if wide is None else f'<b class="from-{wide}">{text}</b>'
    return f'<i class="{label.colours[0]}" style="flex:{label.share:.5f}" title="{text}">{shown}</i>'
