"""From an estimate to a proof: which batch a card really takes, in few real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Measured
from vramplan.planner.monotone_search import largest
from vramplan.planner.suggest import TOO_LARGE, Plan, Search

Measure = Callable[[Job], Measured]
MOST_RUNS = 8
"""Real runs that one answer may take."""


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One real run beside its estimate."""

    job: Job
    measured: Measured
    predicted: Estimate | None
    """None where nothing estimates such a job."""

    @property
    def fits(self) -> bool:
        """Whether it ran."""
        return self.measured.outcome == "ok"


@dataclass(frozen=True, slots=True)
class VerifiedPlan:
    """What the runs showed of a search's plans."""

    search: Search
    tries: tuple[ProbeRun, ...]
    plan: Plan | None
    """The plan to use, as it was run; None where none of those tried ran."""
    settled: bool
    """Whether the next larger pair is known not to run, or was not worth a run."""

    @property
    def proof(self) -> ProbeRun | None:
        """The run of the plan to use."""
        return next((one for one in self.tries if self.plan and one.job == self.plan.estimate.job and one.fits), None)


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest micro-batch that a card takes."""

    tries: tuple[ProbeRun, ...]
    micro_batch_size: int
    """0 where not even one sample fits."""
    exact: bool
    """Whether one sample more was run, and ran out of memory."""


def find_max(
    job: Job, start: int, measure: Measure, predict: Callable[[Job], Estimate | None], most_runs: int = MOST_RUNS
) -> LargestBatch:
    """The largest micro-batch that really runs, looked for around `start`."""
    tries: list[ProbeRun] = []

    def fits(micro: int) -> bool:
        one = job.model_copy(update={"micro_batch_size": micro})
        tries.append(ProbeRun(one, measure(one), predict(one)))
        return tries[-1].fits

    found, exact = largest(start, fits, most_runs)
    return LargestBatch(tuple(tries), found, exact)


def can_be_proved(search: Search) -> bool:
    """Whether there is a plan to run, or a smallest pair that only the margin or fragmentation ruled out."""
    return search.recommended is not None or search.rejected[0].reason != TOO_LARGE


def verify(search: Search, measure: Measure, predict: Callable[[Job], Estimate | None], most_runs: int) -> VerifiedPlan:
    """Run the recommended plan; on out of memory step down, with room to spare step up.

    Up only where the estimate kept a larger pair from being a plan at all: a smaller one that was chosen for its speed
    stays. A larger pair is worth a run where the estimate, corrected by what was measured, says that it fits.

    Raises:
        ConfigError: where the search found nothing to run.
    """
    if not can_be_proved(search):
        raise ConfigError("nothing comes near to fitting by the estimate, so there is no plan to run")
    pairs = sorted(
        [(plan.micro_batch_size, plan.gradient_accumulation_steps) for plan in search.plans]
        + [(one.micro_batch_size, one.gradient_accumulation_steps) for one in search.rejected]
    )
    tries: dict[int, ProbeRun] = {}

    def run(index: int) -> ProbeRun:
        micro, steps = pairs[index]
        job = search.job.model_copy(update={"micro_batch_size": micro, "gradient_accumulation_steps": steps})
        tries[index] = ProbeRun(job, measure(job), predict(job))
        return tries[index]

    chosen = search.recommended or search.rejected[0]
    first = pairs.index((chosen.micro_batch_size, chosen.gradient_accumulation_steps))
    settled = True
    best: int | None = first
    if run(first).fits:
        for index in range(max(first + 1, len(search.plans)), len(pairs)):
            if first < len(search.plans) - 1 or not _room_for(tries[index - 1], predict, search.job, pairs[index]):
                break
            if len(tries) >= most_runs:
                settled = False
                break
            if not run(index).fits:
                break
            best = index
    else:
        below, settled = largest(first, lambda n: run(n - 1).fits, most_runs - 1, first)
        best = below - 1 if below else None
    return VerifiedPlan(
        search, tuple(tries.values()), _as_plan(search, tries[best]) if best is not None else None, settled
    )


def _room_for(last: ProbeRun, predict: Callable[[Job], Estimate | None], job: Job, pair: tuple[int, int]) -> bool:
    """Whether a larger pair may fit: its estimate, times measured over predicted of the last run."""
    larger = predict(job.model_copy(update={"micro_batch_size": pair[0], "gradient_accumulation_steps": pair[1]}))
    if larger is None or last.predicted is None or not last.measured.peak_allocated_bytes:
        return False
    ratio = last.measured.peak_allocated_bytes / last.predicted.peak_allocated_bytes
    outside = larger.device_total_bytes - larger.peak_reserved_bytes
    return larger.peak_allocated_bytes * ratio + outside <= larger.capacity_bytes


def _as_plan(search: Search, proof: ProbeRun) -> Plan:
    """The plan that was run: one of the search's own, or a pair that the estimate had rejected."""
    for plan in search.plans:
        if (plan.micro_batch_size, plan.gradient_accumulation_steps) == (
            proof.job.micro_batch_size,
            proof.job.gradient_accumulation_steps,
        ):
            return plan
    assert proof.predicted is not None
    time = (
        proof.job.gradient_accumulation_steps * proof.predicted.micro_step_seconds + proof.predicted.optimizer_seconds
    )
    fastest = search.recommended
    own = fastest.estimate if fastest else proof.predicted
    base = own.job.gradient_accumulation_steps * own.micro_step_seconds + own.optimizer_seconds
    return Plan(
        proof.job.micro_batch_size,
        proof.job.gradient_accumulation_steps,
        search.job.num_gpus,
        proof.predicted,
        (fastest.relative_step_time if fastest else 1.0) * time / base,
    )
