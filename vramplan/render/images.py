"""Images for a terminal and as a picture: what each size costs, and how many samples fit with it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.atomic_write import write as write_file
from vramplan.errors import ConfigError, MissingDependencyError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import ProcessedImage, Size
from vramplan.planner.images import ImageSizeRow, Solved
from vramplan.render.plot import INSTALL
from vramplan.render.terminal import NARROW, WIDTH, bar, footer, gib, heading
from vramplan.units import GiB

KINDS = (".svg", ".png")


def table(rows: Sequence[ImageSizeRow], card: Gpu, width: int = WIDTH) -> RenderableType:
    """`vramplan images`."""
    first, wide = rows[0].estimate, width >= NARROW
    shown = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    shown.add_column("pixels", justify="right", no_wrap=True)
    if wide:
        shown.add_column("becomes", no_wrap=True)
    for name in ("tokens", "GiB"):
        shown.add_column(name, justify="right", no_wrap=True)
    if wide:
        shown.add_column("micro-batch 1", no_wrap=True)
    shown.add_column("largest", justify="right", no_wrap=True)
    for row in rows:
        one = row.estimate
        fits = row.max_micro_batch_size
        shown.add_row(
            str(row.size),
            *[row.image.description] * wide,
            f"{row.image.all_tokens:,}",
            gib(one.device_total_bytes if one.fits_without_margin else one.lower_bound_bytes),
            *[bar(one, 14)] * wide,
            Text(str(fits), style="bold green") if fits else Text("does not fit", style="red"),
        )
    job = first.job
    kind = "video" if job.videos else "image"
    each = (
        f"{job.pictures} {kind}{'s' * (job.pictures > 1)} in each sample; tokens are those of one {kind}; GiB and bar"
        " are at micro-batch 1, `largest` is the largest micro-batch that fits."
    )
    return Group(heading(first, card, job.num_gpus), Text(""), shown, Text(""), Text(each), Text(""), *footer(first))


def counts(model: str, model_type: str, rows: Sequence[tuple[Size, ProcessedImage]]) -> RenderableType:
    """`vramplan images` for a model whose memory nothing describes."""
    shown = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("pixels", "becomes", "tokens"):
        shown.add_column(name, justify="left" if name == "becomes" else "right", no_wrap=True)
    for size, picture in rows:
        shown.add_row(str(size), picture.description, f"{picture.all_tokens:,}")
    missing = f"Note: no block describes {model_type}: its tokens are counted, its memory is not estimated."
    return Group(Text(model, style="bold"), Text(""), shown, Text(""), Text(missing, style="yellow"))


def solved(one: Solved) -> Text:
    """What `suggest --solve` adds."""
    value = one.value if isinstance(one.value, int) else f"{one.value.width}x{one.value.height}"
    more = "the next larger one does not fit" if one.bounded else "the model or its processor allows no more"
    said = Text("Largest --")
    said.append(f"{one.quantity} {value}", style="bold")
    tokens = one.estimate.image_tokens_per_sample
    seen = f"{tokens:,} image tokens of " if tokens else ""
    return said + Text(
        f" at micro-batch {one.estimate.micro_batch_size}: {seen}{one.estimate.job.sequence_length:,}; {more}."
    )


def write(rows: Sequence[ImageSizeRow], card: Gpu, path: Path) -> None:
    """Draw micro-batch and memory against tokens into an SVG or PNG file.

    Raises:
        ConfigError: for another kind of file, or a place that cannot be written.
        MissingDependencyError: where matplotlib is not installed.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ConfigError(f"--plot {path}: the name must end in {', '.join(KINDS)}")
    write_file(path, picture(rows, card, kind[1:]))


def picture(rows: Sequence[ImageSizeRow], card: Gpu, kind: str) -> bytes:
    """Memory at micro-batch 1 as bars beside the card's size, the largest micro-batch above each.

    Raises:
        MissingDependencyError: where matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(f"--plot needs matplotlib: {INSTALL}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    used = [row.estimate.device_total_bytes / GiB for row in rows]
    colours = ["#54a24b" if row.max_micro_batch_size else "#e45756" for row in rows]
    marks: Any = axes.bar(range(len(rows)), used, color=colours)
    said = [f"up to {row.max_micro_batch_size}" if row.max_micro_batch_size else "does not fit" for row in rows]
    axes.bar_label(marks, said, padding=2, fontsize=8)
    axes.axhline(rows[0].estimate.capacity_bytes / GiB, color="black", linewidth=1)
    axes.annotate(card.title, (len(rows) - 0.5, rows[0].estimate.capacity_bytes / GiB), ha="right", va="bottom")
    labels = [f"{row.size.width}x{row.size.height}\n{row.image.all_tokens:,} tokens" for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylabel("GiB at micro-batch 1")
    axes.set_title(f"{rows[0].estimate.model}: largest micro-batch by image size")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return target.getvalue()
