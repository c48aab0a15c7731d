"""Results of a measurement: as a table, kept, and compared with the last that was kept."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.environments import ROOT
from benchmarks.measure import Figures
from benchmarks.subjects import Target

LAST = ROOT / "benchmarks/last.json"
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"
TOLERANCE = 1.3
"""A result that is so many times the last one is reported."""
MiB = 1 << 20
SIXTEEN = "search, 135M, global batch 16"


class Results(NamedTuple):
    """A whole measurement."""

    figures: Mapping[str, Figures]
    where: str
    """Versions, and whether vramplan was installed from a wheel."""

    @classmethod
    def of(cls, figures: Mapping[str, Figures], python: str, installed: bool) -> Results:
        """The results of a measurement that ran on this Python."""
        versions = subprocess.run(
            [python, "-c", "import platform; print('Python', platform.python_version())"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        vramplan = subprocess.run(
            [python, "-m", "vramplan", "--version"], capture_output=True, text=True, check=True, cwd=Path(python).parent
        ).stdout.strip()
        return cls(figures, f"{versions}, {vramplan}, {'a wheel' if installed else 'a checkout'}")

    @classmethod
    def read(cls, path: Path) -> Mapping[str, Mapping[str, float]]:
        """The figures of a kept measurement by name."""
        figures: Mapping[str, Mapping[str, float]] = json.loads(path.read_bytes())["figures"]
        return figures

    def as_json(self) -> str:
        """What is kept."""
        figures = {
            name: {"seconds": round(each.seconds, 4), "imports": round(each.imports, 3), "peak_bytes": each.peak_bytes}
            for name, each in self.figures.items()
        }
        return json.dumps({"where": self.where, "figures": figures}, indent=2, ensure_ascii=False) + "\n"

    def table(self) -> str:
        """A Markdown table."""
        lines = ["| what | processor time | x imports | goal | peak memory | goal |", "|---|---:|---:|---:|---:|---:|"]
        for name, each in self.figures.items():
            memory = f"{each.peak_bytes / MiB:,.0f} MiB"
            cells = [
                name,
                _seconds(each.seconds),
                f"{each.imports:.2f}" if each.imports < 10 else f"{each.imports:,.0f}",
                self._goal(each, each.target),
                memory,
                self._goal(each, each.memory),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        notes = {each.note for each in self.figures.values() if each.note}
        return "\n".join([*lines, "", *(f"{note[0].upper()}{note[1:]}." for note in notes), f"{self.where}.", ""])

    def _goal(self, figures: Figures, target: Target | None) -> str:
        """A goal, in bold where it is missed."""
        if target is None:
            return ""
        value = {
            "x": lambda: figures.imports,
            "s": lambda: figures.seconds,
            "MiB": lambda: figures.peak_bytes / MiB,
            "x16": lambda: figures.seconds / self.figures[SIXTEEN].seconds,
        }[target.unit]()
        text = f"{target.value:g} {target.unit}".replace("x16", "x that of 16")
        return text if value <= target.value else f"**{text}**"


def worse(results: Results, last: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each figure that is more than `TOLERANCE` times the last one."""
    lines = []
    for name, each in results.figures.items():
        before: Mapping[str, Any] = last.get(name, {})
        for what, now in (("imports", each.imports), ("peak_bytes", float(each.peak_bytes))):
            if before.get(what) and now > TOLERANCE * before[what]:
                lines.append(f"worse: {name}: {now / before[what]:.2f} times the last {what.replace('_', ' ')}")
    return lines


def page(results: Results) -> None:
    """Put the table into the documentation, between its markers."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{results.table()}{END}{after}", encoding="utf-8")


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
