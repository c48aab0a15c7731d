"""Find by real runs which batch a GPU takes, starting from the estimate, in few runs."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Measured
from vramplan.planner.monotone_search import largest
from vramplan.planner.search_result import TOO_LARGE, Plan, Search

Measure = Callable[[Job], Measured]
Predict = Callable[[Job], Estimate | None]
MAX_RUNS = 8
"""Real runs that one answer may take."""


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One real run and the estimate of the same job."""

    job: Job
    measured: Measured
    predicted: Estimate | None
    """None if no estimator supports the job."""

    @property
    def fits(self) -> bool:
        """Whether training ran without running out of memory."""
        return self.measured.outcome == "ok"


@dataclass(frozen=True, slots=True)
class VerifiedPlan:
    """A search's plans after real runs."""

    search: Search
    runs: tuple[ProbeRun, ...]
    """In the order in which they were made."""
    plan: Plan | None
    """The plan to use, which ran; None if no pair ran."""
    settled: bool
    """Whether the next larger pair is known to fail, or was not worth a run."""

    @property
    def proof(self) -> ProbeRun | None:
        """The run of the plan to use."""
        if self.plan is None:
            return None
        job = self.plan.estimate.job
        return next((run for run in self.runs if run.job == job and run.fits), None)


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest micro-batch that a GPU takes."""

    runs: tuple[ProbeRun, ...]
    """In the order in which they were made."""
    micro_batch_size: int
    """0 if not even one sample fits."""
    exact: bool
    """Whether one sample more ran out of memory."""


def find_max(job: Job, start: int, measure: Measure, predict: Predict, max_runs: int = MAX_RUNS) -> LargestBatch:
    """The largest micro-batch that really runs, searched around `start`."""
    runs: list[ProbeRun] = []

    def fits(micro_batch: int) -> bool:
        candidate = job.model_copy(update={"micro_batch_size": micro_batch})
        runs.append(ProbeRun(candidate, measure(candidate), predict(candidate)))
        return runs[-1].fits

    micro_batch, exact = largest(start, fits, max_runs)
    return LargestBatch(tuple(runs), micro_batch, exact)


def can_be_proved(search: Search) -> bool:
    """Whether there is a plan to run, or a smallest pair that only the margin or fragmentation ruled out."""
    return search.recommended is not None or search.rejected[0].reason != TOO_LARGE


def verify(
    search: Search, measure: Measure, predict: Predict, max_runs: int, *, within_margin: bool = False
) -> VerifiedPlan:
    """Run the recommended plan; on out of memory step down, with room to spare step up.

    It steps up only if the estimate ruled larger pairs out: a smaller one that was chosen for its speed stays. A larger
    pair is worth a run if the estimate, corrected by what was measured, says that it fits. With `within_margin` no pair
    is run that the safety margin rules out: an emulated GPU does not show what the margin is for.

    Raises:
        ConfigError: if even the smallest pair is far too large by the estimate.
    """
    if not can_be_proved(search):
        raise ConfigError("nothing comes near to fitting by the estimate, so there is no plan to run")
    if within_margin and search.recommended is None:
        raise ConfigError("no plan fits with the safety margin, which an emulated GPU cannot replace")
    pairs = sorted(
        [(plan.micro_batch_size, plan.gradient_accumulation_steps) for plan in search.plans]
        + [(pair.micro_batch_size, pair.gradient_accumulation_steps) for pair in search.rejected]
    )
    runs: dict[int, ProbeRun] = {}

    def run(index: int) -> ProbeRun:
        job = search.job.model_copy(update=_batch(pairs[index]))
        runs[index] = ProbeRun(job, measure(job), predict(job))
        return runs[index]

    chosen = search.recommended or search.rejected[0]
    first = pairs.index((chosen.micro_batch_size, chosen.gradient_accumulation_steps))
    settled = True
    best: int | None = first
    if run(first).fits:
        for index in range(max(first + 1, len(search.plans)), len(pairs)):
            if (
                within_margin
                or first < len(search.plans) - 1
                or not _has_room(runs[index - 1], predict, search.job, pairs[index])
            ):
                break
            if len(runs) >= max_runs:
                settled = False
                break
            if not run(index).fits:
                break
            best = index
    else:
        count, settled = largest(first, lambda number: run(number - 1).fits, max_runs - 1, first)
        best = count - 1 if count else None
    plan = _as_plan(search, runs[best]) if best is not None else None
    return VerifiedPlan(search, tuple(runs.values()), plan, settled)


def _batch(pair: tuple[int, int]) -> dict[str, int]:
    return {"micro_batch_size": pair[0], "gradient_accumulation_steps": pair[1]}


def _has_room(last: ProbeRun, predict: Predict, job: Job, pair: tuple[int, int]) -> bool:
    """Whether a larger pair may fit: its estimate, times measured over predicted of the last run."""
    larger = predict(job.model_copy(update=_batch(pair)))
    if larger is None or last.predicted is None or not last.measured.peak_allocated_bytes:
        return False
    ratio = last.measured.peak_allocated_bytes / last.predicted.peak_allocated_bytes
    outside = larger.device_total_bytes - larger.peak_reserved_bytes
    return larger.peak_allocated_bytes * ratio + outside <= larger.capacity_bytes


def _as_plan(search: Search, proof: ProbeRun) -> Plan:
    """The plan that was run: one of the search's own, or a pair that the estimate had rejected."""
    micro_batch, accumulation = proof.job.micro_batch_size, proof.job.gradient_accumulation_steps
    for plan in search.plans:
        if (plan.micro_batch_size, plan.gradient_accumulation_steps) == (micro_batch, accumulation):
            return plan
    assert proof.predicted is not None
    chosen = search.recommended
    base = chosen.estimate if chosen else proof.predicted
    relative = (chosen.relative_step_time if chosen else 1.0) * proof.predicted.step_seconds / base.step_seconds
    return Plan(micro_batch, accumulation, search.job.num_gpus, proof.predicted, relative)
