"""The search: which (micro-batch, accumulation) pairs meet a global batch on a card, and what would help.

The estimator is passed in, so that any of the three sources can drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil

from vramplan.errors import ConfigError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate_cache import EstimateCache, Estimator, Lever
from vramplan.planner.lever_effects import Advice, advise
from vramplan.planner.monotone_search import largest_batch, most_by_tensors
from vramplan.units import ceil_div, divisors

MANY_STEPS = 64
"""Accumulation beyond this draws a warning."""
TOO_LARGE = "needs more than the card has"
FRAGMENTED = "does not fit after fragmentation"
WITHOUT_MARGIN = "fits only without the safety margin"
"""The reason for a pair that the margin alone rules out."""
WORTH_IT = 0.02
"""A plan that is faster by less than this share is not preferred to one that leaves more memory free."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to reach the global batch that fits."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel: int
    estimate: Estimate = field(repr=False)
    relative_step_time: float
    """Time of one optimizer step as a multiple of the fastest plan's."""
    micro_steps: int | None = None
    """Forward and backward passes per card over the whole run."""
    optimizer_updates: int | None = None
    """Optimizer steps over the whole run, accumulation going on across epochs."""
    trainer_updates: int | None = None
    """The same in transformers' Trainer, which also steps at the end of every epoch."""
    relative_run_time: float | None = None
    """Time of the whole run as a multiple of the fastest plan's."""

    @property
    def global_batch_size(self) -> int:
        """Samples behind one optimizer step."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel


@dataclass(frozen=True, slots=True)
class Rejected:
    """A pair that does not fit, and why."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    reason: str
    device_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """The answer to "which batch?"."""

    model: str
    card: Gpu
    job: Job
    global_batch_size: int
    plans: tuple[Plan, ...]
    """Fastest first."""
    recommended: Plan | None
    max_micro_batch_size: int
    rejected: tuple[Rejected, ...]
    advice: tuple[Advice, ...]
    warnings: tuple[str, ...]
    smallest: Estimate
    """The estimate at micro-batch 1, which says why nothing fits where nothing does."""
    learning_rate: float | None = None
    adaptive: bool = True
    """Adam-type optimizer: the rate follows the root of the batch."""


@dataclass(frozen=True, slots=True)
class Run:
    """The whole training run around a plan."""

    samples: int | None = None
    epochs: float = 1.0
    base_lr: float | None = None
    base_batch: int | None = None
    adaptive: bool = True
    """Adam-type optimizer: square-root rule; otherwise linear."""


def pairs(global_batch_size: int, devices: int) -> list[tuple[int, int]]:
    """All (micro-batch, accumulation) with devices x micro x accumulation exactly the target, smallest first.

    >>> pairs(16, 2)
    [(1, 8), (2, 4), (4, 2), (8, 1)]

    Raises:
        ConfigError: where the target is no multiple of the devices; names the nearest targets that are.
    """
    if global_batch_size % devices:
        below, above = global_batch_size // devices * devices, ceil_div(global_batch_size, devices) * devices
        nearest = " or ".join(str(target) for target in (below, above) if target)
        raise ConfigError(
            f"--global-batch {global_batch_size} is not a multiple of {devices} cards; nearest that are: {nearest}"
        )
    per_device = global_batch_size // devices
    return [(micro, per_device // micro) for micro in divisors(per_device)]


def search(
    spec: ModelSpec,
    job: Job,
    card: Gpu,
    global_batch_size: int,
    estimator: Estimator,
    run: Run = Run(),
    levers: Callable[[ModelSpec, Job, Gpu, int], list[Lever]] | None = None,
) -> Search:
    """Every pair that meets the target exactly, fitting or rejected with the reason, fastest first.

    Raises:
        ConfigError: where the target cannot be met with these cards.
        VramplanError: whatever the estimator raises.
    """
    wanted = pairs(global_batch_size, job.data_parallel)
    tried = EstimateCache(spec, job, card, estimator)
    good, bad = _split_by_fit(wanted, tried)
    plans = _ranked([(micro, steps, tried(micro, steps)) for micro, steps in good], job.data_parallel, run)
    rejected = _rejected(bad, tried)
    largest = _largest_micro_batch(good, bad, tried)
    recommended = _recommend(plans)
    warnings = _warnings(recommended)
    smallest = _smallest(wanted, tried)
    following = bad[0] if bad else None
    advice = advise(
        tried, bool(plans), following, smallest, levers(spec, job, card, smallest.device_total_bytes) if levers else []
    )
    return Search(
        model=spec.name,
        card=card,
        job=job,
        global_batch_size=global_batch_size,
        plans=tuple(plans),
        recommended=recommended,
        max_micro_batch_size=largest,
        rejected=tuple(rejected),
        advice=tuple(advice),
        warnings=tuple(warnings),
        smallest=smallest,
        learning_rate=learning_rate(run, global_batch_size),
        adaptive=run.adaptive,
    )


Pair = tuple[int, int]


def _smallest(wanted: list[Pair], tried: EstimateCache) -> Estimate:
    """The pair that needs least: micro-batch 1, or the one that accumulates nothing, finished only where it may."""
    first, last = tried(*wanted[0]), wanted[-1]
    if tried.begin(*last).lower_bound_bytes >= first.device_total_bytes:
        return first
    return min(first, tried(*last), key=lambda one: one.device_total_bytes)


def _split_by_fit(wanted: list[Pair], tried: EstimateCache) -> tuple[list[Pair], list[Pair]]:
    """The pairs that fit, and those that do not.

    The last accumulates nothing: its forward runs without gradients in memory, so it may fit where smaller ones do not
    (FSDP's whole gradients wait for the last micro-batch).
    """
    *accumulating, whole = wanted
    fitting = _largest_fitting(accumulating, tried) + 1
    good, bad = accumulating[:fitting], accumulating[fitting:]
    return ([*good, whole], bad) if tried.fits(*whole) else (good, [*bad, whole])


def _largest_fitting(wanted: list[Pair], tried: EstimateCache) -> int:
    """Index of the largest pair that fits, -1 for none; memory never falls as the micro-batch grows."""
    low, high = -1, len(wanted)
    probe = 0
    while high - low > 1:
        micro, steps = wanted[probe]
        if tried.fits(micro, steps):
            low = probe
        else:
            high = probe
        probe = (low + high) // 2
    return low


def _largest_micro_batch(good: list[Pair], bad: list[Pair], tried: EstimateCache) -> int:
    """The largest micro-batch that fits at all, whether or not it divides the target."""
    if not good:
        return 0
    low, steps = good[-1]
    high = next((micro for micro, _ in bad if micro > low), None)
    room = tried.card.plannable_bytes
    top = most_by_tensors(low, high, lambda micro: tried.begin(micro, steps).lower_bound_bytes, room)
    return largest_batch(low, top, lambda micro: tried.fits(micro, steps))


def _ranked(kept: list[tuple[int, int, Estimate]], devices: int, run: Run) -> list[Plan]:
    times = [steps * one.micro_step_seconds + one.optimizer_seconds for _, steps, one in kept]
    best = min(times, default=1.0)
    counts = [_run_counts(run, micro * devices, steps) for micro, steps, _ in kept]
    whole = [
        micro_steps * one.micro_step_seconds + updates * one.optimizer_seconds
        for (micro_steps, updates), (_, _, one) in zip(counts, kept, strict=True)
    ]
    shortest = min(whole, default=1.0)
    plans = []
    for index, (micro, steps, one) in enumerate(kept):
        plan = Plan(micro, steps, devices, one, times[index] / best)
        if run.samples is not None:
            micro_steps, updates = counts[index]
            plan = replace(
                plan,
                micro_steps=micro_steps,
                optimizer_updates=updates,
                trainer_updates=ceil(run.epochs * ceil_div(ceil_div(run.samples, micro * devices), steps)),
                relative_run_time=whole[index] / shortest,
            )
        plans.append(plan)
    return sorted(plans, key=lambda plan: plan.relative_step_time)


def _run_counts(run: Run, per_micro_step: int, steps: int) -> tuple[int, int]:
    """Micro-steps and optimizer updates of the whole run.

    >>> _run_counts(Run(samples=50, epochs=10), 1, 16)
    (500, 31)
    """
    micro_steps = max(1, int(ceil_div(run.samples or 1, per_micro_step) * run.epochs))
    return micro_steps, max(1, micro_steps // steps)


def _recommend(plans: list[Plan]) -> Plan | None:
    """The fastest plan; among those hardly slower the one that leaves most memory free."""
    near = [plan for plan in plans if plan.relative_step_time <= 1.0 + WORTH_IT]
    return max(near, key=lambda plan: plan.estimate.headroom_bytes, default=None)


def _rejected(too_large: list[tuple[int, int]], tried: EstimateCache) -> list[Rejected]:
    rejected: list[Rejected] = []
    for micro, steps in too_large:
        if rejected:
            rejected.append(Rejected(micro, steps, f"larger than {too_large[0][0]}, which does not fit"))
            continue
        reason = _reason(tried, micro, steps)
        need = tried(micro, steps).device_total_bytes if reason == WITHOUT_MARGIN else tried.need(micro, steps)
        rejected.append(Rejected(micro, steps, reason, need))
    return rejected


def _reason(tried: EstimateCache, micro: int, steps: int) -> str:
    if tried.begin(micro, steps).lower_bound_bytes > tried.card.usable_bytes:
        return TOO_LARGE
    one = tried(micro, steps)
    if one.fits_without_margin:
        return WITHOUT_MARGIN
    return TOO_LARGE if one.headroom_bytes < 0 else FRAGMENTED


def _warnings(recommended: Plan | None) -> list[str]:
    if recommended is None or recommended.gradient_accumulation_steps <= MANY_STEPS:
        return []
    return [
        f"{recommended.gradient_accumulation_steps} accumulation steps: past {MANY_STEPS} each update waits very long,"
        " and small batches train as well (arXiv 2507.07101); consider a smaller global batch"
    ]


def learning_rate(run: Run, global_batch_size: int) -> float | None:
    """The base rate carried over to this batch: square root for Adam-type (arXiv 2205.10287), linear for SGD."""
    if run.base_lr is None or run.base_batch is None:
        return None
    ratio = global_batch_size / run.base_batch
    return run.base_lr * (ratio**0.5 if run.adaptive else ratio)
