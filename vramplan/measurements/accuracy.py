"""Estimates held against measured runs: our own ledger, and what others have published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vramplan.errors import ConfigError, UnknownNameError, VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.measurements import ledger, measure
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Measured
from vramplan.planner import estimate as planner_estimate
from vramplan.planner.suggest import suggest
from vramplan.progress import Progress

METRICS = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "process": "device_total_bytes",
    "device": "device_total_bytes",
}
"""What is measured, and the estimate's figure that it is held against."""
ESTIMATORS = ("analytic", "trace")


class Published(BaseModel):
    """A run that others have measured and published, as a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    """Name of the row."""
    group: str
    """Where rows come from together."""
    source: str
    """File or page, and its version."""
    grade: str
    """A: settings complete; B: some had to be taken from the framework's defaults."""
    model: str
    """A shipped name."""
    gpu: str
    """A known card."""
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    metric: str = Field(pattern="^(allocated|reserved|process|device)$")
    """torch's max_memory_allocated or _reserved; the driver's figure for the process, or for the whole card."""
    measured_bytes: int = Field(gt=0)
    """What was measured."""
    fixed_lengths: bool = True
    """Whether all samples are known to be equally long; where they vary, torch caches far more."""
    unknown: list[str] = Field(default_factory=list)
    """What is not known of the run, or does not correspond."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one run, measured and estimated."""

    run: str
    group: str
    by: str
    metric: str
    measured_bytes: int
    predicted_bytes: int
    complete: bool = True
    """Whether all settings of the run are known."""

    @property
    def error(self) -> float:
        """Share by which the estimate is too high; negative where it is too low."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run was said to fit, and whether it did."""

    run: str
    by: str
    said: bool
    ran: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The largest micro-batch that an estimator would choose, and the largest that runs."""

    run: str
    by: str
    chosen: int
    largest: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of some rows."""

    count: int
    median: float
    p95: float
    """The 95th percentile of the absolute errors (nearest rank)."""
    worst: float
    too_low: float
    """Share of the estimates that are below what was measured."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All that was compared."""

    runs: int
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    choices: tuple[Choice, ...]
    published: tuple[Row, ...]
    unknown: dict[str, tuple[str, ...]]
    """What is not known of the published runs, by group."""
    left_out: tuple[str, ...] = ()
    """Runs that an estimator cannot estimate, and why."""


def summary(rows: Iterable[Row]) -> Summary:
    """The figures of a table's line.

    >>> rows = [Row("", "", "", "", 100, size) for size in (99, 100, 103)]
    >>> one = summary(rows); one.median, round(one.worst, 2), round(one.too_low, 2)
    (0.0, 0.03, 0.33)
    """
    errors = sorted(row.error for row in rows)
    if not errors:
        raise ValueError("no rows")
    absolute = sorted(map(abs, errors))
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    p95 = absolute[max(0, -(-95 * len(errors) // 100) - 1)]
    return Summary(len(errors), median, p95, max(errors, key=abs), sum(e < 0 for e in errors) / len(errors))


def compare(folder: Path | None, published: Path | None, by: Sequence[str], tell: Progress) -> Accuracy:
    """Estimate every run of a ledger, and of a file of published ones.

    Raises:
        VramplanError: for a folder or file that cannot be read, or an unknown estimator.
    """
    for name in by:
        if name not in ESTIMATORS:
            raise UnknownNameError("estimator", name, ESTIMATORS, "known: analytic, trace")
    runs = ledger.load_all(folder) if folder is not None else []
    others = load_published(published) if published is not None else []
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    total = (len(runs) + len(others)) * len(by)
    left_out = []
    for number, (one, estimator) in enumerate((one, estimator) for one in runs for estimator in by):
        tell(one.identity, number / total)
        try:
            found = estimate(one, estimator)
        except VramplanError as error:
            left_out.append(f"{one.identity}, {estimator}: {error}")
            continue
        rows += _rows(one, found, estimator)
        verdicts.append(Verdict(one.identity, estimator, found.fits, one.outcome == "ok"))
    theirs = []
    for number, (row, estimator) in enumerate((row, estimator) for row in others for estimator in by):
        tell(row.id, (len(runs) * len(by) + number) / total)
        theirs.append(published_row(row, estimator))
    unknown: dict[str, dict[str, None]] = {}
    for row in others:
        unknown.setdefault(row.group, {}).update(dict.fromkeys(row.unknown))
    return Accuracy(
        runs=len(runs),
        rows=tuple(rows),
        verdicts=tuple(verdicts),
        choices=tuple(_choices(runs)),
        published=tuple(theirs),
        unknown={group: tuple(said) for group, said in unknown.items()},
        left_out=tuple(left_out),
    )


def estimate(one: Measured, by: str, confidence: float = CONFIDENCE) -> Estimate:
    """A measured run's estimate.

    Raises:
        VramplanError: where it is not modelled.
    """
    spec = ModelSpec(name=one.model, model_type=one.model_type, config=one.config)
    card = find_gpu(one.card)
    card = card.model_copy(
        update={"held_bytes": one.environment.held_by_others_bytes if not one.environment.cap_bytes else 0}
    )
    return planner_estimate.estimate(spec, card, by=by, confidence=confidence, **one.job.settings)


def _rows(one: Measured, found: Estimate, by: str) -> list[Row]:
    return [
        Row(one.identity, one.environment.device, by, metric, measured, getattr(found, METRICS[metric]))
        for metric, measured in (
            ("allocated", one.peak_allocated_bytes),
            ("reserved", one.peak_reserved_bytes),
            ("process", one.device_total_bytes),
        )
        if measured
    ]


def _choices(runs: Sequence[Measured]) -> list[Choice]:
    """Where the largest micro-batch is known: what the search would have chosen."""
    largest = measure.frontiers(runs)
    found: dict[str, Choice] = {}
    for one in runs:
        key = measure.frontier_key(one.model, one.job, one.card, one.environment.cap_bytes)
        true = largest.get(key)
        if true is None or key in found:
            continue
        spec = ModelSpec(name=one.model, model_type=one.model_type, config=one.config)
        job = {
            k: v for k, v in one.job.settings.items() if k not in ("micro_batch_size", "gradient_accumulation_steps")
        }
        try:
            searched = suggest(spec, find_gpu(one.card), one.job.num_gpus, advice=False, **job)
        except VramplanError:
            continue
        found[key] = Choice(one.identity, "analytic", searched.max_micro_batch_size, true)
    return list(found.values())


def load_published(path: Path) -> list[Published]:
    """Published runs, one JSON object a line.

    Raises:
        ConfigError: naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Published.model_validate(json.loads(line)))
        except (ValueError, ValidationError) as error:
            raise ConfigError(f"{path}: line {number} is no published run ({_first(error)})") from error
    if not found:
        raise ConfigError(f"{path}: no published run is in it")
    return found


def _first(error: ValueError) -> str:
    """The first thing wrong, with its key."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'][0].lower()}{first['msg'][1:]}"


def published_row(one: Published, by: str = "analytic") -> Row:
    """A published run beside its estimate."""
    found = planner_estimate.estimate(one.model, one.gpu, by=by, confidence=0.0, **one.job)
    return Row(
        one.id,
        one.group,
        by,
        one.metric,
        one.measured_bytes,
        getattr(found, METRICS[one.metric]),
        not one.unknown,
    )
