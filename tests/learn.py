"""What runs teach: ``vramplan/memory/calibration.json``, and the tables of runs in ``docs/accuracy.md``.

``python -m tests.learn`` writes both.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from statistics import median
from typing import Any

from tests.helpers import ROOT
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.measurements import accuracy, ledger
from vramplan.memory.calibration import facts
from vramplan.memory.estimate import Estimate
from vramplan.render.probe import markdown

PAGE = ROOT / "docs" / "accuracy.md"
LEDGER = ROOT / "tests" / "measured"
PUBLISHED = ROOT / "tests" / "published.jsonl"
LEARNED = ROOT / "vramplan" / "memory" / "calibration.json"


def counts_as_prior(one: accuracy.Published) -> bool:
    """Published runs whose settings are all known to the framework's own defaults, of equal lengths, as the driver saw.

    Torch's own figures say nothing of what lies outside of it, and varying lengths are not modelled.
    """
    return one.grade == "A" and one.fixed_lengths and one.metric in ("process", "device")


def learn() -> dict[str, Any]:
    """Contexts by card, and measured over estimated of every run."""
    runs = [one for one in ledger.load_all(LEDGER) if one.outcome == "ok" and one.environment.device != "cpu"]
    contexts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    ratios = []
    for one in runs:
        try:
            found: Estimate | None = accuracy.estimate(one, "analytic", confidence=0.0)
        except VramplanError:
            found = None
        measured = one.device_total_bytes
        if measured is not None and one.environment.cap_bytes is None and one.job.num_gpus == 1:
            assert one.context_bytes is not None
            contexts[find_gpu(one.card).name].append((one.context_bytes, str(one.environment.driver)))
        if found is not None and measured is not None:
            ratios.append(round(measured / found.device_total_bytes, 4))
    rows = [accuracy.published_row(one) for one in accuracy.load_published(PUBLISHED) if counts_as_prior(one)]
    return {
        "contexts": {
            name: {"bytes": int(median(size for size, _ in seen)), "runs": len(seen), "driver": seen[-1][1]}
            for name, seen in sorted(contexts.items())
        },
        "ledger": sorted(ratios),
        "published": sorted(round(row.measured_bytes / row.predicted_bytes, 4) for row in rows),
    }


def dumps(found: dict[str, Any]) -> str:
    """As the file holds it."""
    return json.dumps(found, indent=1) + "\n"


def in_page(text: str) -> str:
    """The page with its tables of measured runs updated."""
    held = accuracy.compare(LEDGER, PUBLISHED, ("analytic",), lambda doing, share: None)
    for part in ("ledger", "published"):
        place = re.compile(rf"(<!-- accuracy: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = place.subn(lambda match, part=part: match[1] + markdown(held, part) + match[2], text)
        assert found == 1, f"{PAGE.name} has no place for the table of {part} runs"
    return text


if __name__ == "__main__":
    LEARNED.write_text(dumps(learn()))
    facts.cache_clear()
    PAGE.write_text(in_page(PAGE.read_text()))
