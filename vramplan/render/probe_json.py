"""Measured runs as JSON: the contract of `probe --json`, `suggest --probe --json` and `accuracy --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramplan.measurements.accuracy import Accuracy, summary
from vramplan.measurements.verify import LargestBatch, ProbeRun, VerifiedPlan
from vramplan.render import json_output
from vramplan.render.probe import groups


def tried(one: ProbeRun) -> dict[str, Any]:
    """One run beside its estimate."""
    run = one.measured
    return {
        "fits": one.fits,
        "measured": {
            **run.model_dump(mode="json"),
            "device_total_bytes": run.device_total_bytes,
            "step_time": run.step_time,
            "tokens_per_second": run.tokens_per_second,
        },
        "predicted": None if one.predicted is None else json_output.estimate(one.predicted),
    }


def largest(one: LargestBatch) -> dict[str, Any]:
    """`probe --find-max --json`."""
    return {
        "largest_micro_batch_size": one.micro_batch_size,
        "exact": one.exact,
        "tries": [tried(each) for each in one.runs],
    }


def verified(one: VerifiedPlan) -> dict[str, Any]:
    """What `suggest --probe --json` adds, as `verified`."""
    return {
        "plan": None if one.plan is None else json_output.plan(one.plan),
        "settled": one.settled,
        "tries": [tried(each) for each in one.runs],
    }


def accuracy(one: Accuracy) -> dict[str, Any]:
    """`accuracy --json`."""
    own = groups(one.rows, lambda row: (row.group, row.by, row.metric))
    others = groups(one.published, lambda row: (row.group, row.metric, str(row.complete)))
    return {
        "runs": one.runs,
        "ledger": [
            {"card": card, "by": by, "metric": metric, **asdict(summary(rows))}
            for (card, by, metric), rows in own.items()
        ],
        "published": [
            {"group": group, "metric": metric, "complete": complete == "True", **asdict(summary(rows))}
            for (group, metric, complete), rows in others.items()
        ],
        "verdicts": [asdict(verdict) for verdict in one.verdicts],
        "choices": [asdict(choice) for choice in one.choices],
        "rows": [{**asdict(row), "error": row.error} for row in (*one.rows, *one.published)],
        "unknown": {group: list(said) for group, said in one.unknown.items()},
    }
