"""The JSON schema of what each command prints under `--json`, from the types in `json_types`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter

from vramplan.measurements.accuracy import Choice, Verdict
from vramplan.render.adapt_types import LadderData, SimulationData
from vramplan.render.hardware_types import HardwareData
from vramplan.render.json_types import (
    CheckData,
    ComparisonData,
    CountData,
    EstimateAnswerData,
    EstimateData,
    Exact,
    FixData,
    GpuData,
    ImageData,
    LargestData,
    ModelData,
    ProbeRunData,
    SearchData,
    written,
)
from vramplan.render.oom_types import OutOfMemoryData
from vramplan.render.table_types import TableData
from vramplan.render.token_types import TokenBudgetsData


class SummaryData(Exact):
    """Errors of some estimates, as shares; the worst and the 95th percentile by their size."""

    metric: str
    count: int
    median: float
    p95: float
    worst: float
    too_low: float


class LedgerData(SummaryData):
    """Runs of the ledger, by GPU and estimator."""

    card: str
    by: str


class PublishedData(SummaryData):
    """Runs that others have published."""

    group: str
    complete: bool


class AccuracyRowData(Exact):
    """One figure, measured and estimated."""

    run: str
    group: str
    by: str
    metric: str
    measured_bytes: int
    predicted_bytes: int
    complete: bool
    error: float


class AccuracyData(Exact):
    """`vramplan accuracy --json`."""

    runs: int
    ledger: list[LedgerData]
    published: list[PublishedData]
    verdicts: list[Annotated[dict[str, Any], written(Verdict)]]
    published_verdicts: list[Annotated[dict[str, Any], written(Verdict)]]
    choices: list[Annotated[dict[str, Any], written(Choice)]]
    rows: list[AccuracyRowData]
    unknown: dict[str, list[str]]


OUTPUTS: dict[str, Any] = {
    "oom": OutOfMemoryData,
    "suggest": SearchData | HardwareData | TokenBudgetsData,
    "estimate": EstimateAnswerData,
    "check": CheckData | FixData | list[CheckData],
    "images": list[ImageData] | list[CountData],
    "adapt plan": LadderData,
    "adapt simulate": list[SimulationData],
    "compare": ComparisonData,
    "report": EstimateData,
    "table": TableData | dict[str, TableData],
    "probe": ProbeRunData | LargestData,
    "accuracy": AccuracyData,
    "models": list[ModelData],
    "gpus": list[GpuData],
}
"""The type of what each command prints under `--json`."""


@cache
def adapter_of(command: str) -> TypeAdapter[Any]:
    """What validates the output of a command."""
    return TypeAdapter(OUTPUTS[command])


def schema_of(command: str) -> dict[str, Any]:
    """The JSON schema of what a command prints under `--json`.

    Raises:
        KeyError: for a command without `--json`.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"vramplan {command} --json",
        **adapter_of(command).json_schema(mode="validation"),
    }


__all__ = ["OUTPUTS", "adapter_of", "schema_of"]
