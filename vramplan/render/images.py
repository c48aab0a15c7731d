"""`vramplan images` for a terminal and as a picture: what each size costs, and how many samples fit with it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from vramplan.atomic_write import write as write_file
from vramplan.errors import ConfigError, MissingDependencyError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import ProcessedImage, Size
from vramplan.memory.estimate import Estimate
from vramplan.planner.images import SAMPLE_TEXT_TOKENS, ImageSizeRow, Solved
from vramplan.render.bars import level_bar
from vramplan.render.figures import free_gib
from vramplan.render.plot import INSTALL, as_label
from vramplan.render.terminal import (
    Answer,
    Box,
    Column,
    Screen,
    all_assumptions,
    assumption_line,
    held_by_others,
    indented,
    notes,
    simple_table,
)
from vramplan.render.verdict import SIGNS, Outcome, need_of_capacity, outcome_of, reason_of, subject
from vramplan.units import GiB

KINDS = (".svg", ".png")
WITH_BARS = 78
"""Columns from which each size has a bar."""
BAR = 18
"""Columns of the bar beside each size."""


def answer(rows: Sequence[ImageSizeRow], gpu: Gpu, verbose: bool = False) -> Answer:
    """What each size costs, and the largest micro-batch with it."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        first = rows[0].estimate
        job, row = first.job, _largest_fitting(rows)
        kind = "video" if job.videos else "image"
        shown_row = row or min(rows, key=lambda other: other.estimate.device_total_bytes)
        estimate = shown_row.estimate
        size = _size(shown_row.size)
        outcome: Outcome = "fits" if row is not None else outcome_of(False, estimate.fits_without_margin)
        words = SIGNS[outcome][1].upper()
        verdict = f"FITS UP TO {size}" if row is not None else f"{words}, EVEN AT {size}"
        if row is rows[-1] and all(other.max_micro_batch_size for other in rows):
            verdict = f"FITS AT EVERY SIZE, UP TO {size}"
        box = Box(
            subject(first.model, gpu.title, job.num_gpus),
            outcome,
            estimate.device_total_bytes,
            estimate.capacity_bytes,
            estimate.margin_bytes,
            verdict=verdict,
            reason=reason_of(estimate),
        )
        roomy = _largest_fitting(rows, 2)
        more = f"; micro-batch {roomy.max_micro_batch_size} fits up to {_size(roomy.size)}" if roomy is not None else ""
        lines = [screen.text(f"At micro-batch 1{more}")]
        each = (
            f"{job.images} {kind}{'s' * (job.images > 1)} in each sample {_length(rows)}; tokens are those of one"
            f" {kind}; GiB and bar are at micro-batch 1; `largest` is the largest micro-batch that fits, ≈1 if it fits"
            " only without margin."
        )
        shown: list[RenderableType] = [
            box.panel(screen, lines),
            assumption_line(screen, _without_size(first), verbose=verbose),
            *notes(screen, (*first.notes, *held_by_others(first, gpu.held_bytes))),
            Text(""),
            _table(screen, rows),
            Text(""),
            screen.text(each, "dim"),
        ]
        return [*shown, *(all_assumptions(screen, first) if verbose else [])]

    return Answer(lay_out)


def _size(size: Size) -> str:
    return f"{size.width} × {size.height}"


def _length(rows: Sequence[ImageSizeRow]) -> str:
    """How long samples are, whether with each size or with all."""
    lengths = sorted({row.sequence_length for row in rows})
    if len(lengths) == 1:
        return f"of {lengths[0]:,} tokens"
    return (
        f"with {SAMPLE_TEXT_TOKENS} tokens of text, so {lengths[0]:,} to {lengths[-1]:,} in all (--seq-len sets them)"
    )


def _largest_fitting(rows: Sequence[ImageSizeRow], micro_batch_size: int = 1) -> ImageSizeRow | None:
    """The size of most tokens that fits, with all that have fewer."""
    fitting = None
    for row in sorted(rows, key=lambda row: (row.image.all_tokens, row.size.width * row.size.height)):
        if row.max_micro_batch_size < micro_batch_size:
            break
        fitting = row
    return fitting


def _without_size(estimate: Estimate) -> Estimate:
    """The estimate with a job that names no size and no length: the sizes differ."""
    return replace(estimate, job=estimate.job.model_copy(update={"image_size": None}), assumptions=())


def _table(screen: Screen, rows: Sequence[ImageSizeRow]) -> RenderableType:
    capacity = rows[0].estimate.capacity_bytes
    bars = screen.width >= WITH_BARS
    columns: list[Column] = [("pixels", "right"), *(["becomes"] * (not screen.narrow)), ("tokens", "right")]
    table = simple_table(*columns, ("GiB", "right"), *([f"of {free_gib(capacity)}"] * bars), ("largest", "right"))
    if screen.narrow:
        table.padding = (0, 1, 0, 0)
    for row in rows:
        estimate = row.estimate
        style = "green" if row.max_micro_batch_size else "yellow" if estimate.fits_without_margin else "red"
        need = estimate.device_total_bytes
        becomes = [_size(row.size)]
        if screen.narrow and row.image.description != str(row.size):
            becomes.append(f"= {row.image.description}")
        table.add_row(
            Text("\n").join(screen.text(line) for line in becomes),
            *([] if screen.narrow else [screen.text(row.image.description)]),
            f"{row.image.all_tokens:,}",
            need_of_capacity(need, capacity)[0],
            *([level_bar(min(need, capacity), capacity, 0, BAR, style, screen.ascii_only)] if bars else []),
            screen.text(str(row.max_micro_batch_size or ("≈1" if estimate.fits_without_margin else "none")), style),
        )
    return table


def counts(model: str, model_type: str, rows: Sequence[tuple[Size, ProcessedImage]]) -> Answer:
    """Tokens of each size for a model whose memory is not estimated."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        table = simple_table(("pixels", "right"), "becomes", ("tokens", "right"))
        for size, picture in rows:
            table.add_row(screen.text(_size(size)), screen.text(picture.description), f"{picture.all_tokens:,}")
        missing = (
            f"the analytic estimator does not support {model_type}: tokens are counted, its memory is not estimated."
        )
        return [screen.text(model, "bold"), *notes(screen, [missing]), Text(""), indented(table)]

    return Answer(lay_out)


def solved(solution: Solved) -> Answer:
    """The largest value that `suggest --solve` found."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        value = (
            f"{solution.value.width}x{solution.value.height}" if isinstance(solution.value, Size) else solution.value
        )
        end = "the next larger one does not fit" if solution.bounded else "the model or its processor allows no more"
        tokens = solution.estimate.image_tokens_per_sample
        length = solution.estimate.job.sequence_length
        samples = f": {tokens:,} image tokens of {length:,}" if tokens else f", samples of {length:,} tokens"
        rest = f" at micro-batch {solution.estimate.micro_batch_size}{samples}; {end}."
        return [Text.assemble("Largest ", (f"--{solution.quantity} {value}", "bold"), screen.text(rest))]

    return Answer(lay_out)


def write(rows: Sequence[ImageSizeRow], gpu: Gpu, path: Path) -> None:
    """Draw micro-batch and memory against tokens into an SVG or PNG file.

    Raises:
        ConfigError: for another kind of file, or one that cannot be written.
        MissingDependencyError: if matplotlib is not installed.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ConfigError(f"--plot {path}: the name must end in {', '.join(KINDS)}")
    write_file(path, picture(rows, gpu, kind[1:]))


def picture(rows: Sequence[ImageSizeRow], gpu: Gpu, kind: str) -> bytes:
    """Memory at micro-batch 1 as bars, the GPU's capacity as a line, the largest micro-batch above each bar.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
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
    bars: Any = axes.bar(range(len(rows)), used, color=colours)
    labels_above = [f"up to {row.max_micro_batch_size}" if row.max_micro_batch_size else "does not fit" for row in rows]
    axes.bar_label(bars, labels_above, padding=2, fontsize=8)
    axes.axhline(rows[0].estimate.capacity_bytes / GiB, color="black", linewidth=1)
    axes.annotate(gpu.title, (len(rows) - 0.5, rows[0].estimate.capacity_bytes / GiB), ha="right", va="bottom")
    labels = [f"{row.size.width}x{row.size.height}\n{row.image.all_tokens:,} tokens" for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylabel("GiB at micro-batch 1")
    axes.set_title(as_label(f"{rows[0].estimate.model}: largest micro-batch by image size"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return target.getvalue()
