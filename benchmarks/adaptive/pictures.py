"""Pictures and tables of results that were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.adaptive.frontier import Row, read, rows, table

TASKS = {"from_scratch": "a small model from scratch", "fine_tuning": "the same, fine-tuned on other text"}
COLOURS = ("#4c78a8", "#72b7b2", "#2a9d8f", "#e45756", "#b279a2", "#54a24b", "#9d755d", "#f58518", "#eeca3b", "#9d9da1")
MARKERS = "osD^vPX*<>"


PICTURES = Path(__file__).parents[2] / "docs" / "images"


def draw_all(folder: Path) -> None:
    """Write the table of each task that was run, and its picture for the guide."""
    for name, title in TASKS.items():
        path = folder / f"{name}.jsonl"
        if not path.exists():
            continue
        results = read(path)
        found = rows(results)
        (folder / f"{name}.md").write_text(table(found))
        print(table(found))
        _draw(found, results, title, PICTURES / f"adaptive-{name.replace('_', '-')}.svg")


def _draw(found: Sequence[Row], results: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    fixed, policies = ([row for row in found if row.kind == kind] for kind in ("fixed", "policy"))
    with matplotlib.rc_context({"svg.hashsalt": "vramplan", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot([row.steps for row in fixed], [row.loss for row in fixed], color="black", marker=".", linewidth=1)
        for row in fixed:
            number = row.title.split()[1]
            left.annotate(
                number, (row.steps, row.loss), xytext=(3, 4), textcoords="offset points", annotation_clip=True
            )
        for number, row in enumerate(policies):
            look = {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": "none"}
            left.plot([row.steps], [row.loss], label=row.title, **look)
            trail = next(run for run in results if run["title"] == row.title)["trajectory"]
            samples, batches = ([point[key] for point in trail] for key in ("samples", "batch"))
            right.step(samples, batches, where="post", color=COLOURS[number])
        noise = next(run for run in results if run["title"] == "noise scale")["trajectory"]
        known = [(point["samples"], point["noise_scale"]) for point in noise if "noise_scale" in point]
        right.plot(*zip(*known, strict=True), color="#444444", linestyle=":")
        right.annotate("noise scale", known[len(known) // 8], xytext=(8, -4), textcoords="offset points")
        left.set(xscale="log", xlabel="optimizer steps", ylabel="validation loss, nats a character")
        left.set_xlim(min(row.steps for row in policies) / 2, 1.2 * max(row.steps for row in found))
        losses = [row.loss for row in (*policies, fixed[0])]
        left.set_ylim(min(losses) - 0.03, max(losses) + 0.06)
        left.set_title(f"{title}: fixed batches (line) and policies", loc="left", fontsize=10)
        right.set(xlabel="samples", ylabel="global batch")
        right.set_yscale("log", base=2)
        right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        right.set_title("the batch over the run, one seed", loc="left", fontsize=10)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None})
