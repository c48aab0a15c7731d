"""Which of the plans that fit is recommended, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.errors import ConfigError, setting
from vramplan.planner.batch_warnings import fewer_negatives
from vramplan.planner.search_result import Plan
from vramplan.units import GiB

SPEED_TOLERANCE = 0.02
"""Plans within this share of the fastest count as equally fast."""
MORE_ROOM = 0.05
"""Share of the GPU by which another plan must leave more memory free to be named."""

_ORDERS: dict[str, Callable[[Plan], float]] = {
    "largest": lambda plan: -plan.micro_batch_size,
    "fastest": lambda plan: plan.relative_step_time,
    "headroom": lambda plan: -plan.estimate.headroom_bytes,
}
PREFERENCES = tuple(_ORDERS)
"""largest: the largest micro-batch, so the least accumulation; fastest: the shortest step; headroom: the most free
memory."""


def check_preference(prefer: str) -> None:
    """Refuse an unknown preference.

    Raises:
        ConfigError: naming those that are known.
    """
    if prefer not in PREFERENCES:
        raise ConfigError(f"{setting('prefer', prefer)}: expected {', '.join(PREFERENCES)}")


def in_order(plans: Sequence[Plan], prefer: str) -> list[Plan]:
    """The plans, the preferred one first; of equally fast ones, the one that leaves most memory free.

    Where the samples of a micro-batch are each other's negatives, it is the largest micro-batch of those.
    """
    ordered = sorted(plans, key=_ORDERS[prefer])
    if prefer == "fastest" and ordered:
        equal = _as_fast(ordered)
        largest = max(equal, key=lambda plan: plan.micro_batch_size)
        alike = [plan for plan in equal if not _lost_negatives(plan, largest)]
        best = max(alike, key=lambda plan: plan.estimate.headroom_bytes)
        ordered = [best, *(plan for plan in ordered if plan is not best)]
    return ordered


def _as_fast(plans: Sequence[Plan]) -> list[Plan]:
    """Those that are about as fast as the fastest."""
    fastest = min(plan.relative_step_time for plan in plans)
    return [plan for plan in plans if plan.relative_step_time <= fastest * (1 + SPEED_TOLERANCE)]


def reason(plans: Sequence[Plan], prefer: str) -> str:
    """Why the first of the plans is recommended, and what another one has over it; empty if there is none."""
    if len(plans) < 2:
        return "The only micro-batch that fits with the margin" if plans else ""
    best = plans[0]
    if prefer == "headroom":
        return f"Most memory free{_faster(best, plans)}"
    if prefer == "fastest":
        equal = _as_fast(plans)
        if len(equal) == 1:
            return "Fastest plan"
        most = "negatives" if any(_lost_negatives(plan, best) for plan in equal) else "memory free"
        return f"Most {most} of the fastest plans, which differ by 2 % at most"
    return f"Largest micro-batch that fits with the margin{_faster(best, plans) or _roomier(best, plans)}"


def _faster(best: Plan, plans: Sequence[Plan]) -> str:
    fastest = min(plans, key=lambda plan: plan.relative_step_time)
    gain = 1 - fastest.relative_step_time / best.relative_step_time
    if gain <= SPEED_TOLERANCE:
        return ""
    fewer = ", with fewer negatives" if _lost_negatives(fastest, best) else ""
    return f"; {_pair(fastest)} takes {gain:.0%} less time{fewer} (--prefer fastest)"


def _roomier(best: Plan, plans: Sequence[Plan]) -> str:
    """Of the plans that are as fast, the one that leaves most memory free, if that is much more."""
    equal = [plan for plan in plans if plan.relative_step_time <= best.relative_step_time * (1 + SPEED_TOLERANCE)]
    equal = [plan for plan in equal if not _lost_negatives(plan, best)]
    roomiest = max(equal, key=lambda plan: plan.estimate.headroom_bytes)
    more_bytes = roomiest.estimate.headroom_bytes - best.estimate.headroom_bytes
    if more_bytes < MORE_ROOM * best.estimate.capacity_bytes:
        return ""
    return f"; {_pair(roomiest)} is as fast and leaves {more_bytes / GiB:.1f} GiB more free"


def _lost_negatives(plan: Plan, other: Plan) -> bool:
    """Whether a contrastive loss has fewer negatives in the micro-batch of `plan` than in that of `other`."""
    return bool(fewer_negatives(plan.estimate.job, plan.micro_batch_size, other.micro_batch_size))


def _pair(plan: Plan) -> str:
    return f"{plan.micro_batch_size} × {plan.gradient_accumulation_steps}"
