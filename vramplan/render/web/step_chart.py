"""Memory over an optimizer step, as a picture above what stays.

Areas are stretched to the width of the page and texts stand over them at a share of the width, so that one fragment
suits every screen without a script.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from vramplan.dataclass import dataclass
from vramplan.render.figures import CATEGORIES, free_gib, gib, part_name
from vramplan.render.verdict import outcome
from vramplan.render.web.colours import COLOURS
from vramplan.render.web.labels import LETTER, WIDTHS
from vramplan.render.web.step_profile import StepProfile, phase_names
from vramplan.units import GiB

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate

HEIGHT = 240
"""Pixels."""
LINE = 16
"""Pixels of a line of text."""
SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt."}
"""Phases where there is little room."""
NARROW = 0.76
"""A picture of the first of the widths is narrower by what stands beside it, on a small phone."""
SEEN_FROM = GiB // 200
"""Bytes that do not round to 0.00 GiB."""
LEAST_MOVING = 0.3
"""Share of the height that what moves takes at least; if it would be less, the GPU's line is left out."""
LINE_CLASSES = {"fits": "good", "without margin": "warn", "does not fit": "bad"}


@dataclass(frozen=True, slots=True)
class Scale:
    """Bytes as pixels from the top."""

    low: int
    high: int

    def y(self, num_bytes: float) -> float:
        """The height of a size."""
        return round(HEIGHT * (self.high - num_bytes) / max(1, self.high - self.low), 1)


def step_chart(estimate: Estimate, profile: StepProfile) -> str:
    """The picture as HTML, with its figures for a pointer that hovers over it."""
    need_bytes, capacity_bytes = estimate.device_total_bytes, estimate.capacity_bytes
    low, high = profile.fixed_bytes, max(capacity_bytes, need_bytes)
    has_gpu = capacity_bytes > low and need_bytes - low >= LEAST_MOVING * (high - low)
    scale = Scale(low, high if has_gpu else low + (need_bytes - low) * 9 // 8)
    peak_bytes = max(profile.totals)
    lines = [
        (need_bytes, LINE_CLASSES[outcome(estimate)], f"need {gib(need_bytes)}"),
        (peak_bytes, "peak", f"tensors {gib(peak_bytes)}"),
        *([(capacity_bytes, "gpu", f"GPU {free_gib(capacity_bytes)}")] if has_gpu else []),
    ]
    margin = ""
    if has_gpu and estimate.margin_bytes:
        top = scale.y(capacity_bytes)
        height = scale.y(capacity_bytes - estimate.margin_bytes) - top
        margin = f'<i class="band" style="top:{top}px;height:{height:.1f}px"></i>'
    count = len(profile.totals)
    stays = {part_name(name, estimate.job): size for name, size in profile.fixed.items() if size >= SEEN_FROM}
    fixed = ", ".join(f"{name} {size / GiB:.2f}" for name, size in stays.items())
    where = "above this picture" if capacity_bytes > low else "less than what stays alone"
    caption = "" if has_gpu else f'<p class="cap">The GPU has {free_gib(capacity_bytes)} GiB, {where}.</p>'
    return (
        f'<div class="step" data-step="{escape(json.dumps(_figures(estimate, profile), separators=(",", ":")))}">'
        f'{_phases(estimate, profile)}<div class="plot">'
        f'<svg viewBox="0 0 {count} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="Memory over one'
        f' optimizer step; tensors take up to {gib(peak_bytes)} GiB">{_areas(profile, scale)}</svg>'
        f"{margin}{_ticks(scale)}{_rules(profile)}{_lines(lines, scale)}</div>"
        f'<p class="fixed">fixed {low / GiB:.2f}: {escape(fixed)} (not to scale)</p></div>{caption}'
    )


def _figures(estimate: Estimate, profile: StepProfile) -> dict[str, object]:
    """What the pointer shows: each column's hundredths of a GiB by part, and where each phase begins."""
    names = [name for name in COLOURS if name in profile.levels]
    rows = zip(*(profile.levels[name] for name in names), strict=True)
    starts = [start for _, start in profile.phases]
    return {
        "parts": [[COLOURS[name], CATEGORIES[name][0]] for name in names],
        "phases": list(zip(starts, phase_names(profile, estimate.gradient_accumulation_steps), strict=True)),
        "columns": [[round(size * 100 / GiB) for size in row] for row in rows],
    }


def _phases(estimate: Estimate, profile: StepProfile) -> str:
    """The names of the phases above the picture, as long as there is room for them in pictures of several widths."""
    count = len(profile.totals)
    starts = [start for _, start in profile.phases]
    names = phase_names(profile, estimate.gradient_accumulation_steps)
    phases = [
        (name, (name, phase, SHORT.get(phase, phase)), start / count, (end - start) / count)
        for name, (phase, start), end in zip(names, profile.phases, [*starts[1:], count], strict=True)
    ]
    layouts = []
    for width in WIDTHS:
        shown = []
        for name, forms, start, share in phases:
            room = share * width * (NARROW if width == WIDTHS[0] else 1)
            fitting = next((form for form in forms if len(form) * LETTER + 6 <= room), None)
            if fitting is not None:
                shown.append(f'<span style="left:{start:.2%};width:{share:.2%}">{fitting}</span>')
            elif name == names[-1]:
                shown.append(f'<span class="last">{name}</span>')
        layouts.append(f'<div class="phases at-{width}">{"".join(shown)}</div>')
    return "".join(layouts)


def _rules(profile: StepProfile) -> str:
    """A line where each phase begins but the first."""
    count = len(profile.totals)
    return "".join(f'<i class="rule" style="left:{start / count:.2%}"></i>' for _, start in profile.phases[1:])


def _ticks(scale: Scale) -> str:
    """Two to eight round sizes on the axis."""
    span = max(1, (scale.high - scale.low) // GiB)
    every = next(step for size in (1, 10, 100, 1000) for step in (size, 2 * size, 5 * size) if span / step <= 7)
    first = -(-scale.low // GiB)
    sizes = range(first + -first % every, scale.high // GiB + 1, every)
    tops = [(size, scale.y(size * GiB)) for size in sizes]
    return "".join(f'<i class="tick" style="top:{top}px"><b>{size}</b></i>' for size, top in tops if top > LINE)


def _lines(lines: Iterable[tuple[int, str, str]], scale: Scale) -> str:
    """Lines across the picture, named right of it: each name at least a line of text below the one before."""
    shown, names, lowest = [], [], -float(LINE)
    for num_bytes, name, text in sorted(lines, reverse=True):
        top = scale.y(num_bytes)
        lowest = max(top - LINE / 2, lowest + LINE)
        shown.append(f'<i class="line {name}" style="top:{top}px"></i>')
        names.append(f'<span class="{name}" style="top:{lowest:.1f}px">{text}</span>')
    return f'{"".join(shown)}<div class="gutter">{"".join(names)}</div>'


def _areas(profile: StepProfile, scale: Scale) -> str:
    """The categories, one on the other, above what stays."""
    below = [scale.low] * len(profile.totals)
    areas = []
    for category, colour in COLOURS.items():
        if category not in profile.levels:
            continue
        stays = profile.fixed.get(category, 0)
        above = [low + size - stays for low, size in zip(below, profile.levels[category], strict=True)]
        if above != below:
            areas.append(f'<path class="{colour}" d="{_outline(above, below, scale)}"/>')
        below = above
    return "".join(areas)


def _outline(above: Sequence[int], below: Sequence[int], scale: Scale) -> str:
    """An area of columns: along its upper edge, and back along the lower one."""
    count = len(above)
    there = [f"H{i}V{scale.y(above[i]):g}" for i in range(count) if not i or above[i] != above[i - 1]]
    back = [
        f"H{i + 1}V{scale.y(below[i]):g}" for i in reversed(range(count)) if i + 1 == count or below[i] != below[i + 1]
    ]
    return f"M0 {scale.y(below[0]):g}{''.join(there)}H{count}{''.join(back)}H0Z"
