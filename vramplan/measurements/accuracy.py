"""Compare estimates with measured runs: our own ledger, and runs published by others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import UnknownNameError, UnsupportedError, VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.measurements import ledger, measure
from vramplan.measurements.published import Published, load_published
from vramplan.memory.calibration import CONFIDENCE, plannable_bytes, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Measured
from vramplan.planner import estimate as planner_estimate
from vramplan.planner.monotone_search import largest
from vramplan.progress import Progress, silent

METRICS = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "process": "device_total_bytes",
    "device": "device_total_bytes",
}
"""Kind of measurement -> attribute of the estimate that it is compared with."""
ESTIMATORS = ("analytic", "trace")
MOST_ESTIMATES = 64
"""Of one search for the largest micro-batch."""


@dataclass(frozen=True, slots=True)
class Row:
    """One peak of one run, measured and estimated."""

    run: str
    group: str
    by: str
    metric: str
    measured_bytes: int
    predicted_bytes: int
    complete: bool = True
    """Whether all settings of the run are published."""
    grade: str = ""
    """The grade of a published run."""
    fixed_lengths: bool = True
    """Whether all samples are equally long."""

    @property
    def error(self) -> float:
        """(estimate - measurement) / measurement: positive if the estimate is too high."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the estimate of a run fits, and whether the run did."""

    run: str
    by: str
    said: bool
    """Whether the estimate fits."""
    ran: bool
    """Whether the run did not run out of memory."""
    said_without_margin: bool | None = None
    """Whether the estimate fits without the safety margin; none for runs of a ledger."""
    group: str = ""
    """The publication; empty for runs of a ledger."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The largest micro-batch that an estimator would choose, and the largest that runs."""

    run: str
    by: str
    chosen: int
    largest: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of the errors of several rows."""

    count: int
    median: float
    p95: float
    """The 95th percentile of the absolute errors (nearest rank)."""
    worst: float
    too_low: float
    """Share of the estimates that are below the measurement."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Estimates compared with a ledger and with published runs."""

    runs: int
    """Number of runs in the ledger."""
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    choices: tuple[Choice, ...]
    published: tuple[Row, ...]
    published_verdicts: tuple[Verdict, ...]
    """Of published runs on a GPU that is named."""
    unknown: dict[str, tuple[str, ...]]
    """Settings of the published runs that are not known, by group."""
    left_out: tuple[str, ...] = ()
    """Runs that an estimator does not support, and why."""


def summary(rows: Iterable[Row]) -> Summary:
    """Statistics of the errors of several rows.

    >>> rows = [Row("", "", "", "", 100, size) for size in (99, 100, 103)]
    >>> errors = summary(rows); errors.median, round(errors.worst, 2), round(errors.too_low, 2)
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


def compare(folder: Path | None, published: Path | None, by: Sequence[str], progress: Progress = silent) -> Accuracy:
    """Estimate every run of a ledger and of a file of published runs with each of the estimators in `by`.

    Raises:
        VramplanError: for a folder or file that cannot be read, or an unknown estimator.
    """
    for name in by:
        if name not in ESTIMATORS:
            raise UnknownNameError("estimator", name, ESTIMATORS, "known: analytic, trace")
    runs = ledger.load_all(folder) if folder is not None else []
    published_runs = load_published(published) if published is not None else []
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    total = (len(runs) + len(published_runs)) * len(by)
    left_out = []
    for number, (run, estimator) in enumerate((run, estimator) for run in runs for estimator in by):
        progress(run.identity, number / total)
        try:
            predicted = estimate(run, estimator)
        except VramplanError as error:
            left_out.append(f"{run.identity}, {estimator}: {error}")
            continue
        rows += _rows(run, predicted, estimator)
        verdicts.append(Verdict(run.identity, estimator, predicted.fits, run.outcome == "ok"))
    published_rows, published_verdicts = [], []
    estimates: dict[str, Estimate] = {}
    pairs = ((published_run, estimator) for published_run in published_runs for estimator in by)
    for number, (published_run, estimator) in enumerate(pairs, len(runs) * len(by)):
        progress(published_run.id, number / total)
        key = repr((published_run.model, published_run.gpu, published_run.job, estimator))
        if key not in estimates:
            estimates[key] = published_run.estimate(estimator)
        if published_run.outcome == "ok":
            published_rows.append(published_row(published_run, estimator, estimates[key]))
        if published_run.names_gpu and "#" not in published_run.id:  # "#smi": another metric of the same run
            published_verdicts.append(published_verdict(published_run, estimator, estimates[key]))
    unknown: dict[str, dict[str, None]] = {}
    for published_run in published_runs:
        unknown.setdefault(published_run.group, {}).update(dict.fromkeys(published_run.unknown))
    return Accuracy(
        runs=len(runs),
        rows=tuple(rows),
        verdicts=tuple(verdicts),
        choices=tuple(_choices(runs)),
        published=tuple(published_rows),
        published_verdicts=tuple(published_verdicts),
        unknown={group: tuple(names) for group, names in unknown.items()},
        left_out=tuple(left_out),
    )


def estimate(run: Measured, by: str, confidence: float = CONFIDENCE) -> Estimate:
    """The estimate of a measured run.

    Raises:
        VramplanError: if the estimator does not support it.
    """
    environment = run.environment
    differs: dict[str, Any] = {}
    if not environment.cap_bytes:
        differs["held_bytes"] = environment.held_by_others_bytes
    elif environment.compute_capability is not None:  # a larger GPU stood in, and ran its own kernels
        names = ("compute_capability", "multiprocessors")
        differs = {name: value for name in names if (value := getattr(environment, name)) is not None}
    gpu = find_gpu(run.card).model_copy(update=differs)
    return planner_estimate.estimate(_spec(run), gpu, by=by, confidence=confidence, **run.job.settings)


def _spec(run: Measured) -> ModelSpec:
    """The model of a measured run.

    Raises:
        UnsupportedError: for a model of the user's own, whose code would run because a file names it.
    """
    if run.model_type == IMPORT_PATH:
        raise UnsupportedError(f"{run.model}: code of your own is not run because a ledger names it; probe it again")
    return ModelSpec(name=run.model, model_type=run.model_type, config=run.config)


def _rows(run: Measured, predicted: Estimate, by: str) -> list[Row]:
    device = run.environment.device + (", emulated" if run.environment.is_emulated else "")
    return [
        Row(run.identity, device, by, metric, measured, getattr(predicted, METRICS[metric]))
        for metric, measured in (
            ("allocated", run.peak_allocated_bytes),
            ("reserved", run.peak_reserved_bytes),
            ("process", run.device_total_bytes),
        )
        if measured
    ]


def _choices(runs: Sequence[Measured]) -> list[Choice]:
    """The search's largest micro-batch for each set of runs whose largest is known."""
    frontiers = measure.frontiers(runs)
    choices: dict[str, Choice] = {}
    for run in runs:
        key = measure.frontier_key(run.model, run.job, run.card, run.environment.cap_bytes)
        measured = frontiers.get(key)
        if measured is None or key in choices:
            continue
        try:
            chosen = largest_estimated(_spec(run), find_gpu(run.card), run.job.settings, CONFIDENCE)
        except VramplanError:
            continue
        choices[key] = Choice(run.identity, "analytic", chosen, measured)
    return list(choices.values())


def largest_estimated(spec: ModelSpec, gpu: Gpu, settings: Mapping[str, Any], confidence: float) -> int:
    """The largest micro-batch that fits by the estimate; 0 if none fits.

    Args:
        spec: the model.
        gpu: the GPU.
        settings: fields of :class:`vramplan.Job`; the micro-batch is passed over, the accumulation is kept.
        confidence: of the safety margin; 0 for none.

    Raises:
        VramplanError: if there is no estimate.
    """
    job = {name: value for name, value in settings.items() if name != "micro_batch_size"}

    def fits(size: int) -> bool:
        return planner_estimate.estimate(spec, gpu, confidence=confidence, micro_batch_size=size, **job).fits

    return largest(1, fits, MOST_ESTIMATES)[0]


def published_row(run: Published, by: str = "analytic", predicted: Estimate | None = None) -> Row:
    """A published run that ran, beside its estimate without a margin."""
    assert run.measured_bytes is not None
    predicted = predicted or run.estimate(by)
    return Row(
        run=run.id,
        group=run.group,
        by=by,
        metric=run.metric,
        measured_bytes=run.measured_bytes,
        predicted_bytes=getattr(predicted, METRICS[run.metric]),
        complete=not run.unknown,
        grade=run.grade,
        fixed_lengths=run.fixed_lengths,
    )


def published_verdict(run: Published, by: str, predicted: Estimate) -> Verdict:
    """Whether a published run is said to fit, with the margin of a verdict and without.

    `predicted` is its estimate without a margin: the allocator is only replayed again if it may give its cache back.
    """
    room = plannable_bytes(predicted.job, with_margin(find_gpu(run.gpu), CONFIDENCE))
    said = predicted.device_total_bytes <= room
    if not said and predicted.peak_tensor_bytes <= room:
        said = run.estimate(by, CONFIDENCE).fits
    return Verdict(run.id, by, said, run.outcome == "ok", predicted.fits, run.group)
