"""The matrix: real models traced on fake tensors, over families, methods, dtypes, checkpointing, attention and shapes.

    python -m tests.matrix          trace every case that has not been traced; write tests/cases/traced.json and the
                                    README's tables
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
PHASES = ("forward", "backward", "optimizer")
GROUPS = {**FAMILIES, **MIXTURES, **SEEING, **OTHERS}
"""All families; the workers of a test run share them out."""
COLUMNS = ("case", "tensors", "allocated", "reserved", *PHASES, "flops", "parameters", "trained")

ESTIMATES: dict[str, list[Any]] = {}
"""Rows of the analytic estimator that have been worked out, by case."""


def traced(name: str) -> list[Any]:
    """Trace one case; a row of COLUMNS."""
    from vramplan.torch_backend import tracing

    case = case_of(name)
    return row_of(case, tracing().estimate(spec_for(case.family), case.job, card_of(case.card)))


def analytic(name: str) -> list[Any]:
    """The same by the analytic estimator; several tests ask for it."""
    if name not in ESTIMATES:
        case = case_of(name)
        ESTIMATES[name] = row_of(case, estimator.estimate(spec_for(case.family), case.job, card_of(case.card)))
    return ESTIMATES[name]


def estimate_family(family: str, folder: Path, wait: bool = True) -> bool:
    """Have the estimates of every case of a family: the first process that asks works them out, the others read them.

    Returns False if another process is at it, and this one is not to wait.
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
    """The same for every family; what other processes are working out is read at the end."""
    for family in [family for family in GROUPS if not estimate_family(family, folder, wait=False)]:
        estimate_family(family, folder)


def row_of(case: Case, found: Estimate) -> list[Any]:
    """What the table keeps of an estimate."""
    return [
        case.name,
        found.peak_tensor_bytes,
        found.peak_allocated_bytes,
        found.peak_reserved_bytes,
        *(found.phases[phase] for phase in PHASES),
        found.flops_per_micro_step,
        found.num_parameters,
        found.num_trainable_parameters,
    ]


def load() -> dict[str, list[Any]]:
    """The committed traces by name."""
    if not PATH.exists():
        return {}
    content = json.loads(PATH.read_text())
    return {row[0]: row for row in content["rows"]}


def save(rows: dict[str, list[Any]]) -> None:
    """Commit them, one line each."""
    from vramplan.torch_backend import versions

    lines = ",\n".join(json.dumps(rows[case.name]) for case in all_cases() if case.name in rows)
    PATH.write_text(f'{{"by": {json.dumps(versions())},\n"columns": {json.dumps(COLUMNS)},\n"rows": [\n{lines}\n]}}\n')


@cache
def errors(name: str) -> dict[str, float]:
    """Analytic over traced, less one, of everything measured but the counts."""
    mine, row = analytic(name), rows_by_name()[name]
    return {column: a / b - 1 if b else 0.0 for column, a, b in zip(COLUMNS[1:8], mine[1:8], row[1:8], strict=True)}


@cache
def rows_by_name() -> dict[str, list[Any]]:
    """The committed traces, read once."""
    return load()


def percent(value: float, signed: bool = True) -> str:
    """A share for people; what rounds to nothing is 0."""
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
            found = sorted((errors(name)[column] for name in names), key=abs)
            middle = median(found)
            late = abs(found[min(len(found) - 1, int(0.95 * len(found)))])
            cells += [percent(middle), percent(late, signed=False), percent(found[-1])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """What the README shows, by the name of its place there."""
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


def in_readme(text: str) -> str:
    """The README with its tables made anew."""
    for place, content in tables().items():
        pattern = re.compile(rf"(<!-- agreement: {place} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = pattern.subn(lambda match, content=content: match[1] + content + match[2], text)
        assert found == 1, f"README.md has no place for the table of {place}"
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
    readme = ROOT / "README.md"
    readme.write_text(in_readme(readme.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
