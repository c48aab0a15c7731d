"""The benchmarks: what a process costs, the table of results, what is compared with the last ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.large_table import CELLS, flags
from benchmarks.measure import Figures
from benchmarks.process import run
from benchmarks.results import LAST, PAGE, Results, worse
from benchmarks.subjects import COMMANDS, REPORTS, SEARCHES, Target
from tests.helpers import ROOT
from vramplan.planner.table import table_request

MiB = 1 << 20


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="os.wait4 of POSIX")
def test_what_a_process_costs(tmp_path: Path) -> None:
    idle = run([sys.executable, "-c", "print(1)"], tmp_path, {})
    child = "kept = b'x' * (100 << 20)\nimport time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    busy = run([sys.executable, "-c", parent], tmp_path, {})
    assert idle.output == "1\n"
    assert busy.seconds > 0.3
    assert busy.seconds > idle.seconds > 0, "its children are counted"
    assert busy.peak_bytes > 100 * MiB > idle.peak_bytes
    with pytest.raises(RuntimeError, match="exit code 2"):
        run([sys.executable, "-c", "import sys; sys.exit(2)"], tmp_path, {})


def test_the_table_and_what_got_worse() -> None:
    figures = {
        "fast": Figures(0.05, 1.2, 30 * MiB, Target(1.5, "x")),
        "slow": Figures(2.0, 40.0, 300 * MiB, Target(1, "s"), Target(200, "MiB"), "a note"),
        results.SIXTEEN: Figures(0.1, 1.0, MiB),
        "large": Figures(0.3, 3.0, MiB, Target(1, "x16")),
    }
    found = Results(figures, "where")
    assert found.table().splitlines()[2:] == [
        "| fast | 50 ms | 1.20 | 1.5 x | 30 MiB |  |",
        "| slow | 2.0 s | 40 | **1 s** | 300 MiB | **200 MiB** |",
        f"| {results.SIXTEEN} | 100 ms | 1.00 |  | 1 MiB |  |",
        "| large | 300 ms | 3.00 | **1 x that of 16** | 1 MiB |  |",
        "",
        "A note.",
        "where.",
    ]
    last = {"fast": {"imports": 1.0, "peak_bytes": 20 * MiB}, "slow": {"imports": 30.0, "peak_bytes": 300 * MiB}}
    assert worse(found, last) == [
        "worse: fast: 1.50 times the last peak bytes",
        "worse: slow: 1.33 times the last imports",
    ]


def test_what_is_kept_is_what_the_page_shows() -> None:
    last = Results.read(LAST)
    shown = PAGE.read_text(encoding="utf-8").split(results.BEGIN)[1].split(results.END)[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines()[2:] if line.startswith("|")] == list(
        last
    )
    assert {each.name for each in (*COMMANDS, *SEARCHES, *REPORTS)} <= set(last), "python -m benchmarks --write"
    assert PAGE == ROOT / "docs/benchmarks.md"


def test_the_large_table_is_large() -> None:
    words = flags()
    options = dict(zip(words[::2], words[1::2], strict=True))
    lists = {name: options[name].split(",") for name in ("--models", "--gpus", "--methods", "--seq-lens")}
    one, two, three, four = map(len, lists.values())
    assert one * two * three * four == CELLS == 126_000
    request = table_request(
        lists["--models"],
        lists["--gpus"],
        methods=lists["--methods"],
        seq_lens=[int(text) for text in lists["--seq-lens"]],
    )
    assert len(request.models) * len(request.cards) * 12 == CELLS, "no model and no GPU stands twice"
