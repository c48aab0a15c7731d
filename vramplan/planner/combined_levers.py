"""Several changes together, if none is enough alone: the free ones with as few others as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from vramplan.analytic.rollout.vllm_share import start_doubts
from vramplan.errors import VramplanError
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.levers import COSTS, NEVER, Lever, cost_rank
from vramplan.planner.search_result import FREE, LeverEffect

Pair = tuple[int, int]
"""(micro-batch, accumulation)."""
Further = Callable[[Mapping[str, Any]], Sequence[Lever]]
"""Fields of the job that are changed -> changes that apply then."""
MOST_TRIED = 3
"""Changes that cost something, of which pairs are tried: those that save most."""


def combined_effect(
    estimates: EstimateCache,
    pairs: Sequence[Pair],
    levers: Sequence[Lever],
    effects: Sequence[LeverEffect],
    further: Further = lambda _: (),
) -> LeverEffect | None:
    """The cheapest combination of changes that fits; None if a single one costs no more, or none fits.

    All free changes are in it, then one of the others, or two; if that is not enough, one after the other until it
    fits (bf16, checkpointing and adapters for a script that sets none of them). Those that it fits without are left
    out again.

    Args:
        estimates: of the job as it is.
        pairs: (micro-batch, accumulation) pairs to try, the one that needs least as it is first.
        levers: the changes that apply.
        effects: what each of them does alone.
        further: fields of the job that are changed -> changes that apply then, such as offloading behind a strategy.
    """
    alone = {effect.change: effect for effect in effects}
    enough = min(
        (cost_rank(effect.cost) for effect in effects if effect.fits and effect.update), default=len(COSTS) + 1
    )
    possible = [lever for lever in levers if _is_combined(lever, enough)]
    free = [lever for lever in possible if lever.cost == FREE and _runs(estimates, (lever,), pairs[0])]
    costly = [lever for lever in possible if lever.cost != FREE and lever.change in alone]
    for others in _choices(costly, alone, further, enough):
        chosen = (*free, *others)
        pair = next((pair for pair in pairs if _fits(estimates, chosen, pair)), None)
        if pair is not None:
            chosen = _without_needless(estimates, chosen, pair)
            return _effect(estimates, chosen, pair, pairs[0]) if len(chosen) > 1 else None
    gathered = _gathered(estimates, pairs, free, costly, further, enough)
    return None if gathered is None else _effect(estimates, *gathered, pairs[0])


def _gathered(
    estimates: EstimateCache,
    pairs: Sequence[Pair],
    free: Sequence[Lever],
    costly: Sequence[Lever],
    further: Further,
    enough: int,
) -> tuple[tuple[Lever, ...], Pair] | None:
    """One change after the other, the cheapest first, until it fits, without those that it fits without."""
    chosen, waiting = (*free,), deque(sorted(costly, key=lambda lever: cost_rank(lever.cost)))
    while waiting:
        lever = waiting.popleft()
        replaced = tuple(other for other in chosen if other.about != lever.about)
        if not _runs(estimates, (*replaced, lever), pairs[0]):
            continue
        chosen = (*replaced, lever)
        pair = next((pair for pair in pairs if _fits(estimates, chosen, pair)), None)
        if pair is not None:
            return _without_needless(estimates, chosen, pair), pair
        if lever.opens_others:
            names = {other.about for other in (*chosen, *waiting)}
            waiting.extendleft(
                other
                for other in reversed(further(_update(chosen)))
                if other.about not in names and other.cost != FREE and _is_combined(other, enough)
            )
    return None


def _is_combined(lever: Lever, enough: int) -> bool:
    return lever.card is None and lever.update not in NEVER and cost_rank(lever.cost) < enough


def _choices(
    costly: Sequence[Lever],
    alone: Mapping[str, LeverEffect],
    further: Further,
    enough: int,
) -> Iterator[tuple[Lever, ...]]:
    """None of them, each, each with what it makes possible, then pairs of those that save most."""
    yield ()
    yield from ((lever,) for lever in costly)
    known = {lever.change for lever in costly}
    for lever in costly:
        if lever.opens_others:
            for other in further(lever.update):
                if other.change not in known and other.cost != FREE and _is_combined(other, enough):
                    yield lever, other
    most = sorted(costly, key=lambda lever: -alone[lever.change].saved_bytes)[:MOST_TRIED]
    for pair in combinations([lever for lever in costly if lever in most], 2):
        if not pair[0].update.keys() & pair[1].update.keys():
            yield pair


def _update(levers: Sequence[Lever]) -> dict[str, Any]:
    return {name: value for lever in levers for name, value in lever.update.items()}


def _fits(estimates: EstimateCache, levers: Sequence[Lever], pair: Pair) -> bool:
    try:
        return estimates.changed(_update(levers)).fits(*pair)
    except VramplanError:  # changes that exclude each other
        return False


def _runs(estimates: EstimateCache, levers: Sequence[Lever], pair: Pair) -> bool:
    try:
        estimates.changed(_update(levers)).too_large(*pair)
    except VramplanError:  # which the job's trainer does not have
        return False
    return True


def _without_needless(estimates: EstimateCache, levers: Sequence[Lever], pair: Pair) -> tuple[Lever, ...]:
    chosen = tuple(levers)
    # the dearest first; of the free ones those that usually save least
    for _, lever in sorted(enumerate(levers), key=lambda item: (-cost_rank(item[1].cost), -item[0])):
        fewer = tuple(other for other in chosen if other is not lever)
        if fewer and _fits(estimates, fewer, pair):
            chosen = fewer
    return chosen


def _effect(estimates: EstimateCache, levers: Sequence[Lever], pair: Pair, first: Pair) -> LeverEffect:
    """What changes do together at a pair, which saves from what the job needs at the `first`."""
    update = _update(levers)
    changed = estimates.changed(update)(*pair)
    need_bytes = changed.device_total_bytes
    saved_bytes = max(0, estimates(*first).device_total_bytes - need_bytes)
    costs = dict.fromkeys(cost for lever in levers if lever.cost != FREE for cost in lever.cost.split(", "))
    change, why = " ".join(lever.change for lever in levers), "; ".join(lever.why for lever in levers)
    effect = LeverEffect(change, why, ", ".join(costs) or FREE, saved_bytes, True, pair[0], need_bytes, update)
    costs_by_field = {name: lever.cost for lever in levers for name in lever.update}
    return replace(effect, costs=costs_by_field, doubts=start_doubts(changed.notes))
