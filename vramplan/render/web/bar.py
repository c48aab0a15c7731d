"""Where the memory goes, as a bar whose parts add up to the need of the GPU."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vramplan.render.figures import free_gib, gib, part_name, parts
from vramplan.render.web.colours import COLOURS
from vramplan.units import GiB

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate

LETTER = 0.0066
"""Width of a letter as a share of the bar on a screen."""
SEEN_FROM = 0.003
"""Share of the bar from which a part is drawn."""


def bar(estimate: Estimate) -> str:
    """The bar as HTML; beyond the GPU's line if it needs more than there is."""
    hundredths = dict(parts(estimate)[0])
    need_bytes, capacity_bytes = estimate.device_total_bytes, estimate.capacity_bytes
    whole = max(need_bytes, capacity_bytes)
    inside, below = [], []
    for category, colour in COLOURS.items():
        size = hundredths.get(category, 0)
        if not size:
            continue
        text = escape(f"{part_name(category, estimate.job)} {size / 100:.2f}")
        share = size * GiB / 100 / whole
        is_named = share >= (len(text) + 2) * LETTER
        if not is_named:
            below.append(f'<span><i class="{colour}"></i>{text}</span>')
        if share >= SEEN_FROM:
            label = f"<b>{text}</b>" if is_named else ""
            inside.append(f'<i class="{colour}" style="flex:{share:.5f}" title="{text}">{label}</i>')
    margin_bytes = min(estimate.margin_bytes, max(0, capacity_bytes - need_bytes))
    free_bytes = max(0, capacity_bytes - need_bytes - margin_bytes)
    for name, size, text in (("free", free_bytes, free_gib(free_bytes)), ("margin", margin_bytes, gib(margin_bytes))):
        if size:
            label = f"{name} {text}" if size / whole >= (len(name) + len(text) + 3) * LETTER else ""
            inside.append(f'<i class="{name}" style="flex:{size / whole:.5f}" title="{name} {text}">{label}</i>')
    if need_bytes > capacity_bytes:
        inside.append(f'<i class="limit" style="left:{capacity_bytes / whole:.3%}"></i>')
    legend = f'<p class="legend">{"".join(below)}</p>' if below else ""
    return f'<div class="bar">{"".join(inside)}</div>{legend}'
