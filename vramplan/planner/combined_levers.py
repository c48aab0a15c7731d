"""Several changes together, if none is enough alone: the free ones with as few others as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from vramplan.errors import VramplanError
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.levers import COSTS, NEVER, Lever, cost_rank
from vramplan.planner.search_result import FREE, LeverEffect

MOST_TRIED = 3
"""Changes that cost something, of which pairs are tried: those that save most."""


def combined_effect(
    estimates: EstimateCache,
    micro: int,
    steps: int,
    levers: Sequence[Lever],
    effects: Sequence[LeverEffect],
    further: Callable[[Lever], Sequence[Lever]] = lambda _: (),
) -> LeverEffect | None:
    """The cheapest combination of changes that fits at a micro-batch; None if a single one costs no more, or none fits.

    The free changes that save anything are all in it, then one of the others, or two; free ones that it fits without
    are left out again.

    Args:
        estimates: of the job as it is.
        micro: the micro-batch.
        steps: micro-batches of an optimizer step.
        levers: the changes that apply.
        effects: what each of them does alone.
        further: changes that apply once another is made, such as offloading behind a strategy.
    """
    alone = {effect.change: effect for effect in effects}
    enough = min(
        (cost_rank(effect.cost) for effect in effects if effect.fits and effect.update), default=len(COSTS) + 1
    )
    helpful = [
        lever
        for lever in levers
        if lever.change in alone and lever.card is None and lever.update not in NEVER and cost_rank(lever.cost) < enough
    ]
    free = [lever for lever in helpful if lever.cost == FREE]
    costly = [lever for lever in helpful if lever.cost != FREE]
    for others in _choices(costly, alone, further, enough):
        chosen = (*free, *others)
        if len(chosen) > 1 and _fits(estimates, chosen, micro, steps):
            return _effect(estimates, _without_needless(estimates, chosen, micro, steps), micro, steps)
    return None


def _choices(
    costly: Sequence[Lever],
    alone: Mapping[str, LeverEffect],
    further: Callable[[Lever], Sequence[Lever]],
    enough: int,
) -> Iterator[tuple[Lever, ...]]:
    """None of them, each, each with what it makes possible, then pairs of those that save most."""
    yield ()
    yield from ((lever,) for lever in costly)
    known = {lever.change for lever in costly}
    for lever in costly:
        if "strategy" in lever.update:
            for other in further(lever):
                if other.change not in known and other.card is None and 0 < cost_rank(other.cost) < enough:
                    yield lever, other
    most = sorted(costly, key=lambda lever: -alone[lever.change].saved_bytes)[:MOST_TRIED]
    for pair in combinations([lever for lever in costly if lever in most], 2):
        if not pair[0].update.keys() & pair[1].update.keys():
            yield pair


def _update(levers: Sequence[Lever]) -> dict[str, Any]:
    return {name: value for lever in levers for name, value in lever.update.items()}


def _fits(estimates: EstimateCache, levers: Sequence[Lever], micro: int, steps: int) -> bool:
    try:
        return estimates.changed(_update(levers)).fits(micro, steps)
    except VramplanError:  # changes that exclude each other
        return False


def _without_needless(estimates: EstimateCache, levers: Sequence[Lever], micro: int, steps: int) -> tuple[Lever, ...]:
    chosen = tuple(levers)
    for lever in levers:
        fewer = tuple(other for other in chosen if other is not lever)
        if lever.cost == FREE and len(fewer) > 1 and _fits(estimates, fewer, micro, steps):
            chosen = fewer
    return chosen


def _effect(estimates: EstimateCache, levers: Sequence[Lever], micro: int, steps: int) -> LeverEffect:
    update = _update(levers)
    need_bytes = estimates.changed(update)(micro, steps).device_total_bytes
    saved_bytes = estimates(micro, steps).device_total_bytes - need_bytes
    costs = dict.fromkeys(cost for lever in levers if lever.cost != FREE for cost in lever.cost.split(", "))
    change, why = " ".join(lever.change for lever in levers), "; ".join(lever.why for lever in levers)
    return LeverEffect(change, why, ", ".join(costs) or FREE, saved_bytes, True, micro, need_bytes, update)
