"""`vramplan adapt simulate` as a picture: batch, learning rate and noise scale over the run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.adaptive.simulate import Simulation
from vramplan.atomic_write import write as write_file
from vramplan.errors import MissingDependencyError
from vramplan.render.plot import INSTALL, as_label

COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#eeca3b", "#72b7b2")


def write(found: Sequence[Simulation], path: Path) -> None:
    """Draw into an SVG or PNG file.

    Raises:
        ConfigError: for a file that cannot be written.
        MissingDependencyError: if matplotlib is not installed.
    """
    write_file(path, picture(found, path.suffix.lower()[1:]))


def picture(found: Sequence[Simulation], kind: str) -> bytes:
    """The picture as SVG or PNG.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(f"--plot needs matplotlib, which is not installed: {INSTALL}") from error
    with matplotlib.rc_context({"svg.hashsalt": "vramplan", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(9, 7.5), layout="constrained")
        above, middle, below = figure.subplots(3, 1, sharex=True)
        for number, one in enumerate(found):
            samples = [point.samples for point in one.points]
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": as_label(one.policy)}
            above.step(samples, [point.batch for point in one.points], where="post", **look)
            middle.step(samples, _rates(one), where="post", **look)
        _noise(below, found[0])
        has_rate = any(point.learning_rate is not None for point in found[0].points)
        _name(above, "global batch", is_log=True)
        _name(middle, "learning rate" if has_rate else "factor of the rate")
        _name(below, "noise scale, samples", is_log=True)
        below.set_xlabel("samples")
        above.legend(frameon=False, loc="upper left")
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else {})
    return out.getvalue()


def _rates(one: Simulation) -> list[float]:
    """The learning rate at each point, or its factor if the record has no rates; a gap where one is missing."""
    if all(point.learning_rate is None for point in one.points):
        return [point.learning_rate_factor for point in one.points]
    return [float("nan") if point.learning_rate is None else point.learning_rate for point in one.points]


def _noise(axes: Any, one: Simulation) -> None:
    known = [(point.samples, point.noise_scale) for point in one.points if point.noise_scale is not None]
    if known:
        axes.plot([samples for samples, _ in known], [scale for _, scale in known], color="#444444")
    else:
        axes.annotate("not known: no norms of two batch sizes", (0.02, 0.5), xycoords="axes fraction")


def _name(axes: Any, label: str, is_log: bool = False) -> None:
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    if is_log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
