"""The results of :mod:`benchmarks.token_batches` as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def table(results: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| lengths | micro-batches | number | padding | largest, tokens | time of an epoch | spread of steps |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for kind, result in results["kinds"].items():
        base = result["ways"]["fixed number"]["seconds"]
        for name, way in result["ways"].items():
            name = name.replace("fixed number", f"{result['samples_per_micro_batch']} samples")
            lines.append(
                f"| {kind} | {name} | {way['micro_batches']:,} | {way['padding']:.1%} | {way['largest']:,} "
                f"| {way['seconds'] / base:.2f} | {way['spread']:.2f} |"
            )
    return "\n".join(lines)


def draw(results: dict[str, Any], path: Path) -> None:
    """Bars: the time of an epoch by kind and way, with the share that padding takes."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams |= {"svg.hashsalt": "vramplan", "svg.fonttype": "none", "font.family": "sans-serif"}
    from matplotlib import pyplot

    kinds = results["kinds"]
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(9, 2.9), sharex=True, layout="constrained")
    for panel, (kind, result) in zip(panels, kinds.items(), strict=True):
        ways = dict(reversed(result["ways"].items()))
        base = result["ways"]["fixed number"]["seconds"]
        for row, way in enumerate(ways.values()):
            time = way["seconds"] / base
            panel.barh(row, time, color="#c3cbd6")
            panel.barh(row, time * (1 - way["padding"]), color="#2456c7")
            panel.text(time + 0.02, row, f"{time:.2f}", va="center", fontsize=8)
        names = [name.replace("fixed number", "fixed number of samples") for name in ways]
        panel.set_yticks(range(len(ways)), names if panel is panels[0] else [""] * len(ways), fontsize=8)
        panel.set_title(
            f"{kind}\n{result['samples_per_micro_batch']} samples or {result['budget']:,} tokens", fontsize=9
        )
        panel.set_xlim(0, 1.25)
        panel.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[1].set_xlabel("estimated time of an epoch, fixed number of samples = 1; grey: share of padding", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
