"""The parts of ``docs/accuracy.md`` that compare estimates with runs; ``tests/learn.py`` writes them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from statistics import median

from tests.emulated_jobs import HELD_OUT
from tests.helpers import ROOT
from vramplan.measurements import accuracy
from vramplan.measurements.accuracy import Accuracy, Row, Verdict
from vramplan.measurements.emulated import Emulated
from vramplan.memory import calibration
from vramplan.render import emulated as render_emulated
from vramplan.render.accuracy import confusion, markdown, markdown_table
from vramplan.units import GiB

PAGE = ROOT / "docs" / "accuracy.md"
LEDGER = ROOT / "tests" / "measured"
PUBLISHED = ROOT / "tests" / "published.jsonl"
LEFT_OUT = ROOT / "tests" / "published_left_out.json"
OTHERS = ROOT / "tests" / "other_estimators.json"
TOO_LOW = 0.03
"""A shortfall below this share needs no cause."""
CAUSES = {
    "cache": "what is measured: cache and memory outside PyTorch (all settings known, allocated peaks are met)",
    "lengths": "settings: lengths vary and are not published",
    "settings": "settings: others are not published, or cannot be expressed",
    "tensors": "the estimate: all settings known, and the allocated peak is higher",
}
"""Why a published figure is above its estimate."""


def cause(row: Row) -> str:
    """The key in :data:`CAUSES` of a published run that is above its estimate."""
    if row.complete:
        return "tensors" if row.metric == "allocated" else "cache"
    return "settings" if row.fixed_lengths else "lengths"


def causes_table(rows: Iterable[Row]) -> str:
    """How many published figures are above their estimate, by how much, and why."""
    rows = list(rows)
    cells = []
    for key, text in CAUSES.items():
        alike = [row for row in rows if cause(row) == key]
        low = [-row.error for row in alike if row.error < -TOO_LOW]
        middle = f"{median(low):.1%}" if low else ""
        cells.append([text, str(len(alike)), str(len(low)), middle])
    low = [-row.error for row in rows if row.error < -TOO_LOW]
    cells.append(["all", str(len(rows)), str(len(low)), f"{median(low):.1%}"])
    heads = ("cause", "figures", f"more than {TOO_LOW:.0%} above the estimate", "these: too low by, median")
    return markdown_table(heads, cells)


def margin_table() -> str:
    """The safety margin of each group of jobs, on a GPU of 24 and of 80 GiB."""
    cells = []
    for group, name in calibration.GROUPS.items():
        runs = calibration.facts()["published"].get(group, {})
        for confidence in (0.8, 0.9):
            found = calibration.margin(confidence, group)
            held = [1 - (size - found.outside_bytes / GiB) / (1 + found.share) / size for size in (24, 80)]
            covered = ""
            if runs:
                share = calibration.left_out_coverage(
                    calibration.facts()["published"], group, confidence, found.outside_bytes
                )
                covered = f"{share:.0%}"
            cells.append([
                f"{name}, {confidence:.0%}", f"{found.outside_bytes / GiB:.2f} GiB", f"{found.share:.1%}",
                *(f"{size:.1%}" for size in held), str(sum(map(len, runs.values())) or "none"), str(len(runs) or ""),
                covered,
            ])  # fmt: skip
    heads = (
        "jobs, confidence", "outside PyTorch", "share", "of 24 GiB", "of 80 GiB", "runs", "publications",
        "of runs left out, covered",
    )  # fmt: skip
    return markdown_table(heads, cells)


def left_out_table() -> str:
    """Published rows that are not compared, and why."""
    counts: Counter[str] = Counter()
    groups: dict[str, list[str]] = {}
    for one in json.loads(LEFT_OUT.read_text()):
        counts[one["why"]] += one["rows"]
        groups.setdefault(one["why"], []).append(one["group"])
    cells = [[why, str(number), ", ".join(groups[why])] for why, number in counts.most_common()]
    return markdown_table(("why", "rows", "publications"), cells)


def others_table() -> str:
    """Other estimators on published runs."""
    if not OTHERS.exists():
        return "Not compared yet.\n"
    facts = json.loads(OTHERS.read_text())
    cells = []
    for name, version in facts["versions"].items():
        answered = [one for one in facts["runs"] if one["estimates"][name] is not None]
        ours, errors = (
            [one["estimates"][by] / one["measured_bytes"] - 1 for one in answered] for by in ("vramplan", name)
        )
        cells.append([
            f"{name} {version}", str(len(errors)), f"{median(map(abs, errors)):.1%}", f"{median(errors):+.1%}",
            f"{max(errors, key=abs):+.1%}", f"{sum(error < -TOO_LOW for error in errors) / len(errors):.0%}",
            "" if name == "vramplan" else f"{median(map(abs, ours)):.1%}, {max(ours, key=abs):+.1%}",
        ])  # fmt: skip
    heads = (
        "estimator", f"of {len(facts['runs'])} runs", "median error", "signed", "worst",
        f"more than {TOO_LOW:.0%} too low", "vramplan on these: median, worst",
    )  # fmt: skip
    return markdown_table(heads, cells)


def answer_table(held: Accuracy, emulated: Emulated) -> str:
    """The first table of the page."""

    def cells(rows: list[Row]) -> list[str]:
        errors = [row.error for row in rows]
        return [str(len(rows)), f"{median(map(abs, errors)):.2%}", f"{max(errors, key=abs):+.2%}"]

    complete = [row for row in held.published if row.complete]
    partly = [row for row in held.published if not row.complete and row.fixed_lengths]
    texts: list[tuple[str, list[Row]]] = []
    for held_out, name in ((True, ", jobs held out"), (False, "")):
        runs = [run for run in emulated.runs if run.run.name.startswith(HELD_OUT) == held_out]
        texts += [
            (
                f"PyTorch's CUDA code on [emulated GPUs](#against-emulated-gpus){name}: {metric}",
                [row for run in runs for row in run.rows if row.metric == metric],
            )
            for metric in ("allocated", "reserved")
        ]
    texts += [
        ("published GPU runs, all settings known: allocated", [row for row in complete if row.metric == "allocated"]),
        ("the same: process memory", [row for row in complete if row.metric == "process"]),
        ("published GPU runs, some settings unknown, equal lengths: all figures", partly),
        ("published GPU runs whose lengths vary", [row for row in held.published if not row.fixed_lengths]),
    ]
    table = [[text, *cells(rows)] for text, rows in texts]
    counts = confusion(held.published_verdicts, True)
    wrong = counts[True, False]
    oom = wrong + counts[False, False]
    return (
        markdown_table(("compared with", "figures", "median error", "worst"), table)
        + f"\nWrongly said to fit: {wrong} of {oom} published runs that ran out of memory. Wrongly said not to:"
        f" {counts[False, True]} of {counts[True, True] + counts[False, True]} that ran.\n"
    )


def wrong_verdicts(verdicts: Iterable[Verdict]) -> str:
    """Runs whose verdict with the margin is wrong, by name."""
    wrong = [one for one in verdicts if one.said != one.ran]
    texts = []
    for said, text in ((True, "Said to fit, but ran out of memory"), (False, "Said not to fit, but ran")):
        names = ", ".join(f"`{one.run}`" for one in wrong if one.said == said)
        texts.append(f"{text}: {names or 'none'}.")
    return "\n\n".join(texts) + "\n"


def in_page(text: str, emulated: Emulated) -> str:
    """The page with its generated parts updated; `emulated` is what :func:`compare_emulated` finds of all its runs."""
    held = accuracy.compare(LEDGER, PUBLISHED, ("analytic",), lambda doing, share: None)
    parts = {
        "answer": answer_table(held, emulated),
        "emulated": render_emulated.markdown(emulated),
        "ledger": markdown(held, "ledger"),
        "published": markdown(held, "published"),
        "verdicts": markdown(held, "verdicts") + "\n" + wrong_verdicts(held.published_verdicts),
        "causes": causes_table(held.published),
        "margin": margin_table(),
        "not compared": left_out_table(),
        "others": others_table(),
    }
    for part, content in parts.items():
        place = re.compile(rf"(<!-- accuracy: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = place.subn(lambda match, content=content: match[1] + content + match[2], text)
        assert found == 1, f"{PAGE.name} has no place for {part}"
    return text
