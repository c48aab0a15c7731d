"""Memory over a step as a picture: bytes alive after each allocation and free, by category, with the peak marked."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.atomic_write import write as write_file
from vramplan.errors import ConfigError, MissingDependencyError
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import Timeline
from vramplan.render.figures import CATEGORIES
from vramplan.units import GiB, format_bytes
from vramplan.visible import visible

INSTALL = 'pip install "vramplan[plot]"'
KINDS = (".svg", ".png", ".html")
COLOURS = {
    "context": "#8c564b",
    "vllm_weights": "#9c3d5f",
    "vllm": "#d67195",
    "sglang_weights": "#9c3d5f",
    "sglang": "#d67195",
    "parameter": "#4c78a8",
    "optimizer_state": "#b279a2",
    "communication": "#72b7b2",
    "gradient": "#2a9d8f",
    "activation": "#54a24b",
    "logits": "#eeca3b",
    "temporary": "#9d9da1",
}
"""From the bottom up."""
COLUMNS = 800
"""Points along the step; each shows the fullest of its events."""


def write(estimate: Estimate, path: Path) -> None:
    """Draw the estimate into an SVG, PNG or HTML file.

    Raises:
        ConfigError: for another kind of file, or one that cannot be written.
        MissingDependencyError: if matplotlib is not installed.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ConfigError(f"--plot {path}: the name must end in {', '.join(KINDS)}")
    write_file(path, page(estimate) if kind == ".html" else picture(estimate, kind[1:]))


def levels(timeline: Timeline, columns: int = COLUMNS) -> tuple[list[int], dict[str, Sequence[int]]]:
    """Event numbers, and the bytes of each category alive after each of them."""
    totals = timeline.live_bytes()
    count = len(totals)
    step = max(1, count // columns)
    events = [max(range(i, min(i + step, count)), key=totals.__getitem__) for i in range(0, count, step)]
    categories = timeline.by_category(events)
    return events, {name: categories[name] for name in COLOURS if name != "context"}


def picture(estimate: Estimate, kind: str) -> bytes:
    """The picture as SVG or PNG.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(f"--plot needs matplotlib, which is not installed: {INSTALL}") from error
    assert estimate.timeline is not None
    timeline = estimate.timeline
    events, categories = levels(timeline)
    context = estimate.device_total_bytes - estimate.peak_reserved_bytes
    with matplotlib.rc_context({"svg.hashsalt": "vramplan", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        axes = figure.add_subplot()
        layers = {"context": [context] * len(events), **categories}
        layers = {name: sizes for name, sizes in layers.items() if any(sizes)}
        axes.stackplot(
            events,
            [[size / GiB for size in sizes] for sizes in layers.values()],
            colors=[COLOURS[name] for name in layers],
            labels=[CATEGORIES[name][0] for name in layers],
            step="post",
            linewidth=0,
        )
        _phases(axes, timeline)
        _limits(axes, estimate, events, categories, context)
        axes.set_xlim(0, max(1, len(timeline.events) - 1))
        axes.set_xlabel("allocations and frees, in order")
        axes.set_ylabel("GiB")
        axes.set_title(as_label(title(estimate)), loc="left", fontsize=11, pad=22)
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
        out = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(out, format=kind, dpi=130, metadata=metadata)
    return out.getvalue()


def as_label(text: str) -> str:
    """Text for matplotlib, which would read formulas between dollars."""
    return visible(text).replace("$", r"\$")


def title(estimate: Estimate) -> str:
    """Model, method, batch, length, GPU and estimator."""
    job = estimate.job
    return (
        f"{estimate.model}, {job.method}, micro-batch {estimate.micro_batch_size} x {job.sequence_length} tokens on"
        f" {estimate.card_title} ({estimate.by})"
    )


def _phases(axes: Any, timeline: Timeline) -> None:
    """A line at the beginning of each phase, its name above if there is room."""
    count = len(timeline.events)
    for mark, end in timeline.phases():
        axes.axvline(mark.first_event, color="black", linewidth=0.5, alpha=0.35)
        if end - mark.first_event > count / 25:
            middle = (mark.first_event + end) / 2
            axes.annotate(
                mark.phase, (middle, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=9, color="#444444"
            )


def _limits(
    axes: Any, estimate: Estimate, events: list[int], categories: dict[str, Sequence[int]], context: int
) -> None:
    """The GPU's capacity, and the peak."""
    sums = [context + sum(sizes[i] for sizes in categories.values()) for i in range(len(events))]
    top = max(range(len(sums)), key=sums.__getitem__)
    axes.axhline(estimate.capacity_bytes / GiB, color="#e45756", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"capacity of the GPU: {format_bytes(estimate.capacity_bytes)}",
        (0.01, estimate.capacity_bytes / GiB),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color="#e45756",
        fontsize=9,
    )
    left = events[top] > events[-1] * 0.6
    axes.plot([events[top]], [sums[top] / GiB], marker="v", color="black", markersize=7)
    axes.annotate(
        f"peak {format_bytes(sums[top])}",
        (events[top], sums[top] / GiB),
        xytext=(-8 if left else 8, 6),
        textcoords="offset points",
        ha="right" if left else "left",
        fontweight="bold",
    )
    axes.set_ylim(0, 1.12 * max(estimate.capacity_bytes, sums[top]) / GiB)


def page(estimate: Estimate) -> bytes:
    """An HTML page: the picture, and every term at the peak as a table."""
    svg = picture(estimate, "svg").decode()
    rows = []
    for category, (name, _) in CATEGORIES.items():
        terms = [term for term in estimate.terms if term.category == category and term.num_bytes]
        if terms:
            total = format_bytes(sum(term.num_bytes for term in terms))
            rows.append(f'<tr class="group"><td>{total}</td><td></td><td>{name}</td><td></td></tr>')
        for term in terms:
            cells = (format_bytes(term.num_bytes), str(term.count), html.escape(term.label), html.escape(term.formula))
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    verdict = "fits" if estimate.fits else "does not fit"
    text = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title(estimate))}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }}
svg {{ width: 100%; height: auto; background: #fff; }}
table {{ border-collapse: collapse; }} td {{ padding: .15em .8em .15em 0; vertical-align: top; }}
td:nth-child(-n+2) {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }}
.group td {{ font-weight: 600; padding-top: .8em; }}
p.small {{ color: #666; font-size: 13px; }}
</style>
<h1 style="font-size:1.3em">{html.escape(title(estimate))}</h1>
<p>{verdict}: {format_bytes(estimate.device_total_bytes)} of the GPU's {format_bytes(estimate.capacity_bytes)};
PyTorch allocates {format_bytes(estimate.peak_allocated_bytes)} and reserves
{format_bytes(estimate.peak_reserved_bytes)}.</p>
{svg[svg.index("<svg") :]}
<h2 style="font-size:1.1em">Alive at the peak, in {estimate.peak_phase}</h2>
<table>{"".join(rows)}</table>
<p class="small">{html.escape("; ".join(estimate.assumptions))}.</p>
</html>
"""
    return text.encode()
