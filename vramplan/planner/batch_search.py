"""The search: which (micro-batch, accumulation) pairs meet a global batch on a GPU, and what would help.

The estimator is passed in, so that any of the three sources can drive it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from vramplan.errors import ConfigError, VramplanError, setting
from vramplan.inputs.batch_rules import batch_error, global_batch_error
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import plannable_bytes
from vramplan.memory.estimate import Estimate
from vramplan.planner.batch_warnings import accumulation_guidance, batch_guidance, batch_warnings
from vramplan.planner.combined_levers import combined_effect
from vramplan.planner.communication_advice import advise, changes, is_worth_advice
from vramplan.planner.estimate_cache import EstimateCache, Estimator
from vramplan.planner.levers import Lever, Levers, cheapest_first, helpful_effects
from vramplan.planner.monotone_search import bisect_largest, largest_batch, largest_by_tensors
from vramplan.planner.preference import in_order, reason
from vramplan.planner.search_result import (
    FRAGMENTED,
    TOO_LARGE,
    WITHOUT_MARGIN,
    CommunicationAdvice,
    LeverEffect,
    Plan,
    Rejected,
    Run,
    Search,
)
from vramplan.planner.training_run import learning_rate, run_length
from vramplan.units import ceil_div, divisors


def pairs(global_batch_size: int, devices: int) -> list[tuple[int, int]]:
    """All (micro-batch, accumulation) with devices x micro x accumulation exactly the target, smallest first.

    >>> pairs(16, 2)
    [(1, 8), (2, 4), (4, 2), (8, 1)]

    Raises:
        ConfigError: if the global batch is not a multiple of the devices; names the nearest that are.
    """
    if global_batch_size % devices:
        below, above = global_batch_size // devices * devices, ceil_div(global_batch_size, devices) * devices
        nearest = " or ".join(str(target) for target in (below, above) if target)
        raise ConfigError(
            f"{setting('global_batch', global_batch_size)} is not a multiple of {devices} GPUs; nearest that are:"
            f" {nearest}"
        )
    per_device = global_batch_size // devices
    return [(micro, per_device // micro) for micro in divisors(per_device)]


def search(
    spec: ModelSpec,
    job: Job,
    gpu: Gpu,
    global_batch_size: int,
    estimator: Estimator,
    run: Run = Run(),
    levers: Levers | None = None,
    prefer: str = "largest",
) -> Search:
    """Every pair that meets the target exactly, fitting or rejected with the reason, the preferred one first.

    Raises:
        ConfigError: if these GPUs cannot meet the global batch.
        VramplanError: whatever the estimator raises.
    """
    every_pair = _allowed(pairs(global_batch_size, job.data_parallel), job)
    estimates = EstimateCache(spec, job, gpu, estimator)
    fitting, too_large = _split_by_fit(every_pair, estimates)
    plans = in_order(_timed([(pair, estimates(*pair)) for pair in fitting], job.data_parallel, run), prefer)
    rejected = _rejected(too_large, fitting, estimates)
    largest = _largest_micro_batch(every_pair, fitting, estimates)
    recommended = plans[0] if plans else None
    smallest = _smallest(every_pair, estimates)
    effects: list[LeverEffect] = []
    if levers is not None and (too_large or not plans):
        need_bytes = smallest.device_total_bytes if job.lengths is None else smallest.lower_bound_bytes
        changes = levers(spec, job, gpu, need_bytes)
        effects = helpful_effects(estimates, smallest, changes, too_large[0] if plans else None, every_pair)
        if not plans:
            pair = (smallest.micro_batch_size, smallest.gradient_accumulation_steps)

            def further(update: Mapping[str, Any]) -> list[Lever]:
                return levers(spec, job.model_copy(update=dict(update)), gpu, smallest.device_total_bytes)

            tried = tuple(dict.fromkeys((pair, every_pair[0], every_pair[-1])))
            together = combined_effect(estimates, tried, changes, effects, further)
            effects = cheapest_first([*effects, *([together] if together is not None else [])])
    return Search(
        model=spec.name,
        card=gpu,
        job=job,
        global_batch_size=global_batch_size,
        plans=tuple(plans),
        recommended=recommended,
        reason=reason(plans, prefer),
        communication=_communication(estimates, recommended) if levers is not None else None,
        max_micro_batch_size=largest,
        rejected=tuple(rejected),
        advice=tuple(effects),
        warnings=tuple(batch_warnings(recommended)),
        guidance=(*accumulation_guidance(smallest, global_batch_size), *batch_guidance(recommended)),
        smallest=smallest,
        learning_rate=learning_rate(run, global_batch_size),
        adaptive=run.adaptive,
    )


def _communication(estimates: EstimateCache, plan: Plan | None) -> CommunicationAdvice | None:
    """What communication costs a plan, and what lessens it; None if it is little, or not known."""
    if plan is None or plan.data_parallel == 1 or not is_worth_advice(plan.estimate):
        return None
    micro, steps = plan.micro_batch_size, plan.gradient_accumulation_steps
    tried = []
    for change in changes(plan.estimate.job):
        job = plan.estimate.job.model_copy(update=change.update)
        with suppress(VramplanError):
            tried.append((change, estimates.estimator(estimates.spec, job, estimates.gpu).complete()))
    return advise(plan.estimate, estimates(micro, 2 * steps), tried)


Pair = tuple[int, int]
"""(micro-batch, accumulation)."""


def _allowed(every_pair: list[Pair], job: Job) -> list[Pair]:
    """The pairs that the job's trainer takes.

    Raises:
        ConfigError: if it takes none.
    """
    allowed = [pair for pair in every_pair if batch_error(with_batch(job, *pair)) is None]
    if not allowed:
        raise ConfigError(str(global_batch_error(with_batch(job, *every_pair[0]))))
    return allowed


def _smallest(every_pair: list[Pair], estimates: EstimateCache) -> Estimate:
    """The pair that needs least: micro-batch 1, or the one without accumulation, completed only if it may be less."""
    first = estimates(*every_pair[0])
    if _last_needs_more_than(first.device_total_bytes - 1, every_pair, estimates):
        return first
    return min(first, estimates(*every_pair[-1]), key=lambda estimate: estimate.device_total_bytes)


def _split_by_fit(every_pair: list[Pair], estimates: EstimateCache) -> tuple[list[Pair], list[Pair]]:
    """The pairs that fit, and those that do not.

    The two smallest are tried first: often only these are estimated, and their steps need no others to be simulated.
    The last pair does not accumulate: its forward runs without gradients in memory, so it may fit although smaller
    pairs do not (FSDP keeps whole gradients until the last micro-batch).
    """
    *accumulating, last = every_pair
    tried = accumulating[:2]
    smallest_too_large = next((number for number, pair in enumerate(tried) if estimates.too_large(*pair)), None)
    if smallest_too_large is None:
        smallest_too_large = 1 + bisect_largest(
            len(tried) - 1, len(accumulating), lambda index: not estimates.too_large(*accumulating[index])
        )
    room = plannable_bytes(estimates.job, estimates.gpu)
    possible = accumulating[:smallest_too_large]
    if not _last_needs_more_than(room, every_pair, estimates):
        possible.append(last)
    # each by itself: after fragmentation, a pair may fit although a smaller one does not
    fitting = [pair for pair in possible if estimates.fits(*pair)]
    return fitting, [pair for pair in every_pair if pair not in fitting]


def _last_needs_more_than(num_bytes: int, every_pair: list[Pair], estimates: EstimateCache) -> bool:
    """Whether the tensors of the pair without accumulation need more, as those of a smaller micro-batch may show."""
    micro, steps = every_pair[-1]
    smaller = next((other for other, _ in every_pair if 1 < other < micro), micro)
    tried = [smaller, micro] if batch_error(with_batch(estimates.job, smaller, steps)) is None else [micro]
    return any(estimates.begin(each, steps).lower_bound_bytes > num_bytes for each in tried)


def _largest_micro_batch(every_pair: list[Pair], fitting: list[Pair], estimates: EstimateCache) -> int:
    """The largest micro-batch that fits at all and that the trainer takes, whether or not it divides the target.

    Those that it does not take are not estimated: the next smaller one that it takes stands for them.
    """
    low, steps = fitting[-1] if fitting else (0, every_pair[-1][1])
    room = plannable_bytes(estimates.job, estimates.gpu)

    def tensor_bytes(micro: int) -> int:
        return estimates.begin(micro, steps).lower_bound_bytes

    if tensor_bytes(max(1, low)) > room:
        return 0
    high = next((micro for micro, _ in every_pair if micro > low and tensor_bytes(micro) > room), None)
    top = largest_by_tensors(max(1, low), high, tensor_bytes, room)

    @cache
    def is_taken(micro: int) -> bool:
        return batch_error(with_batch(estimates.job, micro, steps)) is None

    def taken(most: int) -> int:
        return next(filter(is_taken, range(most, low, -1)), low)

    return taken(largest_batch(low, top, lambda micro: taken(micro) == low or estimates.fits(taken(micro), steps)))


def _timed(fitting: list[tuple[Pair, Estimate]], devices: int, run: Run) -> list[Plan]:
    """A plan for each pair that fits, with its time as a multiple of the fastest one's."""
    fastest = min((estimate.step_seconds for _, estimate in fitting), default=1.0)
    return [
        Plan(
            micro,
            steps,
            devices,
            estimate,
            relative_step_time=estimate.step_seconds / fastest,
            run=run_length(run, estimate.job, micro, steps),
        )
        for (micro, steps), estimate in fitting
    ]


def _rejected(too_large: list[Pair], fitting: list[Pair], estimates: EstimateCache) -> list[Rejected]:
    rejected: list[Rejected] = []
    largest = max((micro for micro, steps in fitting if steps > 1), default=0)
    beyond = next((micro for micro, _ in too_large if micro > largest), None)
    for micro, steps in too_large:
        if beyond is not None and micro > beyond:
            rejected.append(Rejected(micro, steps, f"larger than {beyond}, which does not fit"))
            continue
        need_bytes = estimates(micro, steps).device_total_bytes
        rejected.append(Rejected(micro, steps, _reason(estimates, micro, steps), need_bytes))
    return rejected


def _reason(estimates: EstimateCache, micro: int, steps: int) -> str:
    if estimates.begin(micro, steps).lower_bound_bytes > estimates.gpu.usable_bytes:
        return TOO_LARGE
    estimate = estimates(micro, steps)
    if estimate.fits_without_margin:
        return WITHOUT_MARGIN
    return TOO_LARGE if estimate.headroom_bytes < 0 else FRAGMENTED
