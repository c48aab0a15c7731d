"""The matrix: real models traced on fake tensors, over families, methods, dtypes, checkpointing, attention and shapes.

    python -m tests.matrix          trace every case that has not been traced; write tests/cases/traced.json and the
                                    tables of docs/accuracy.md
    python -m tests.matrix --show   compare them with the analytic estimate

Needs the extra `vramplan[probe]`. What is traced is in tests/matrix_cases.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from tests.helpers import ROOT, card_of
from tests.matrix_cases import FAMILIES, LOOKS, MIXTURES, OTHERS, SEEING, SETTINGS, Case, all_cases, case_of, spec_for
from vramplan.analytic import estimator
from vramplan.memory.estimate import Estimate

PATH = ROOT / "tests" / "cases" / "traced.json"
PAGE = ROOT / "docs" / "accuracy.md"
PHASES = ("forward", "backward", "optimizer")
GROUPS = {**FAMILIES, **MIXTURES, **SEEING, **OTHERS}
"""All families; the workers of a test run divide them."""
COLUMNS = ("case", "tensors", "allocated", "reserved", *PHASES, "flops", "parameters", "trained")

ESTIMATES: dict[str, list[Any]] = {}
"""Rows of the analytic estimator, computed so far, by name of the case."""


def traced(name: str) -> list[Any]:
    """A row of COLUMNS, by tracing the case."""
    from vramplan.torch_backend import tracing

    case = case_of(name)
    return row_of(case, tracing().estimate(spec_for(case.family), case.job, card_of(case.card)))


def analytic(name: str) -> list[Any]:
    """A row of COLUMNS by the analytic estimator, kept for the tests that follow."""
    if name not in ESTIMATES:
        case = case_of(name)
        ESTIMATES[name] = row_of(case, estimator.estimate(spec_for(case.family), case.job, card_of(case.card)))
    return ESTIMATES[name]


def estimate_family(family: str, folder: Path, wait: bool = True) -> bool:
    """Fill ESTIMATES with every case of a family; the first process that asks computes them, the others read its file.

    Returns False if another process is computing them and `wait` is False.
    """
    import fcntl

    path = folder / f"{[*GROUPS].index(family)}.json"
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if path.exists():
            ESTIMATES.update(json.loads(path.read_text()))
        else:
            names = [case.name for case in all_cases() if case.family == family]
            path.write_text(json.dumps({name: analytic(name) for name in names}))
    return True


def estimate_all(folder: Path) -> None:
    """The same for every family; those that other processes are computing come last."""
    for family in [family for family in GROUPS if not estimate_family(family, folder, wait=False)]:
        estimate_family(family, folder)


def row_of(case: Case, estimate: Estimate) -> list[Any]:
    """Values of COLUMNS of an estimate."""
    return [
        case.name,
        estimate.peak_tensor_bytes,
        estimate.peak_allocated_bytes,
        estimate.peak_reserved_bytes,
        *(estimate.phases[phase] for phase in PHASES),
        estimate.flops_per_micro_step,
        estimate.num_parameters,
        estimate.num_trainable_parameters,
    ]


def load() -> dict[str, list[Any]]:
    """The committed traces by name."""
    if not PATH.exists():
        return {}
    content = json.loads(PATH.read_text())
    return {row[0]: row for row in content["rows"]}


def save(rows: dict[str, list[Any]]) -> None:
    """Write the table, one line a case."""
    from vramplan.torch_backend import versions

    lines = ",\n".join(json.dumps(rows[case.name]) for case in all_cases() if case.name in rows)
    PATH.write_text(f'{{"by": {json.dumps(versions())},\n"columns": {json.dumps(COLUMNS)},\n"rows": [\n{lines}\n]}}\n')


@cache
def errors(name: str) -> dict[str, float]:
    """Analytic over traced, less one, of everything but the numbers of parameters."""
    pairs = zip(COLUMNS[1:8], analytic(name)[1:8], rows_by_name()[name][1:8], strict=True)
    return {column: value / reference - 1 for column, value, reference in pairs}


@cache
def rows_by_name() -> dict[str, list[Any]]:
    """The committed traces, read once."""
    return load()


def percent(value: float, signed: bool = True) -> str:
    """A share in percent, as text; without a sign if it rounds to 0."""
    text = f"{100 * value:+.2f}" if signed else f"{100 * value:.2f}"
    return "0.00" if float(text) == 0 else text


def table(label: str, groups: dict[str, list[str]]) -> str:
    """Agreement by group as Markdown: errors of the analytic estimate against the trace, in percent."""
    lines = [
        f"| {label} | cases | allocated peak: median | P95 | worst | reserved peak: median | P95 | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, names in groups.items():
        cells = [group, f"{len(names):,}"]
        for column in ("allocated", "reserved"):
            ordered = sorted((errors(name)[column] for name in names), key=abs)
            p95 = abs(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))])
            cells += [percent(median(ordered)), percent(p95, signed=False), percent(ordered[-1])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """Tables of agreement, by the name of their marker in the page."""
    cases = list(all_cases())
    texts = [c for c in cases if c.family in FAMILIES]
    settings = {setting: [c.name for c in texts if c.setting == setting] for setting in (*SETTINGS, "rarer")}
    families = {family: [c.name for c in cases if c.family == family] for family in FAMILIES}
    seeing = {family: [c.name for c in cases if c.family == family] for family in SEEING}
    looks = {what: [c.name for c in cases if c.setting == what] for what in LOOKS}
    everything = {"all": [c.name for c in cases if c.family in FAMILIES]}
    others = {family: [c.name for c in cases if c.family == family] for family in OTHERS}
    mixtures = {family: [c.name for c in cases if c.family == family] for family in MIXTURES}
    all_seeing = {"all": [c.name for c in cases if c.family in SEEING]}
    return {
        "settings": table("setting", {**settings, **everything}),
        "families": table("model", families),
        "images": table("what trains", {**looks, **all_seeing}),
        "seeing": table("model", seeing),
        "others": table("model", others),
        "mixtures": table("model", mixtures),
    }


def in_page(text: str) -> str:
    """The page with its tables updated."""
    for place, content in tables().items():
        pattern = re.compile(rf"(<!-- agreement: {place} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, content=content: match[1] + content + match[2], text)
        assert count == 1, f"{PAGE.name} has no place for the table of {place}"
    return text


def main() -> int:
    """Trace and write, or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="only these, separated by semicolons")
    parser.add_argument("--settings", help="only these, separated by commas")
    parser.add_argument("--again", action="store_true", help="also what has been traced")
    parser.add_argument("--show", action="store_true", help="compare what has been traced with the analytic estimate")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    families = set(options.families.split(";")) if options.families else {*GROUPS}
    settings = set(options.settings.split(",")) if options.settings else {*SETTINGS, *LOOKS, "rarer"}
    wanted = [case.name for case in all_cases() if case.family in families and case.setting in settings]
    rows = load()
    if options.show:
        for name in wanted:
            shown = " ".join(f"{column} {100 * error:+.3f}%" for column, error in errors(name).items())
            print(name, shown)
        return 0
    missing = [name for name in wanted if options.again or name not in rows]
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, row in enumerate(pool.map(traced, missing, chunksize=4), 1):
            rows[row[0]] = row
            print(f"\r{number} of {len(missing)}", end="", file=sys.stderr)
            if number % 20 == 0:
                save(rows)
    print(file=sys.stderr)
    save(rows)
    PAGE.write_text(in_page(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
