"""Measured runs as JSON: what `probe --json`, `suggest --probe --json` and `accuracy --json` print."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from vramplan.measurements.accuracy import Accuracy, Row, summary
from vramplan.measurements.verify import LargestBatch, ProbeRun, VerifiedPlan
from vramplan.render import json_output
from vramplan.render.accuracy import groups

if TYPE_CHECKING:
    from vramplan.render import json_schema
    from vramplan.render import json_types as types


def probe_run(run: ProbeRun) -> types.ProbeRunData:
    """`probe --json`: one run beside its estimate."""
    measured = run.measured
    return {
        "fits": run.fits,
        "measured": {
            **measured.model_dump(mode="json"),
            "device_total_bytes": measured.device_total_bytes,
            "step_time": measured.step_time,
            "tokens_per_second": measured.tokens_per_second,
        },
        "predicted": None if run.predicted is None else json_output.estimate(run.predicted),
    }


def largest(search: LargestBatch) -> types.LargestData:
    """`probe --find-max --json`."""
    return {
        "largest_micro_batch_size": search.micro_batch_size,
        "exact": search.exact,
        "tries": [probe_run(run) for run in search.runs],
    }


def verified(verified: VerifiedPlan) -> types.VerifiedData:
    """What `suggest --probe --json` adds, as `verified`."""
    return {
        "plan": None if verified.plan is None else json_output.plan(verified.plan, verified.search.card),
        "settled": verified.settled,
        "tries": [probe_run(run) for run in verified.runs],
    }


def _summary(metric: str, rows: list[Row]) -> json_schema.SummaryData:
    errors = summary(rows)
    return {
        "metric": metric,
        "count": errors.count,
        "median": errors.median,
        "p95": errors.p95,
        "worst": errors.worst,
        "too_low": errors.too_low,
    }


def _row(row: Row) -> json_schema.AccuracyRowData:
    return {
        "run": row.run,
        "group": row.group,
        "by": row.by,
        "metric": row.metric,
        "measured_bytes": row.measured_bytes,
        "predicted_bytes": row.predicted_bytes,
        "complete": row.complete,
        "error": row.error,
    }


def accuracy(accuracy: Accuracy) -> json_schema.AccuracyData:
    """`accuracy --json`."""
    ledger = groups(accuracy.rows, lambda row: (row.group, row.by, row.metric))
    published = groups(accuracy.published, lambda row: (row.group, row.metric, str(row.complete)))
    return {
        "runs": accuracy.runs,
        "ledger": [{"card": card, "by": by, **_summary(metric, rows)} for (card, by, metric), rows in ledger.items()],
        "published": [
            {"group": group, "complete": complete == "True", **_summary(metric, rows)}
            for (group, metric, complete), rows in published.items()
        ],
        "verdicts": [asdict(verdict) for verdict in accuracy.verdicts],
        "published_verdicts": [asdict(verdict) for verdict in accuracy.published_verdicts],
        "choices": [asdict(choice) for choice in accuracy.choices],
        "rows": [_row(row) for row in (*accuracy.rows, *accuracy.published)],
        "unknown": {group: list(names) for group, names in accuracy.unknown.items()},
    }
