"""Rollouts that differ in the sizes of their storages alone, as those of batches of one job mostly do.

The timeline of a run with one of them is that of another with other storages: it needs no layout of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.analytic.rollout.colocated_vllm import VllmRollout
from vramplan.analytic.rollout.phase import RolloutPhase
from vramplan.analytic.rollout.sharded_scoring import ShardedScoring
from vramplan.analytic.step_record import do_the_same
from vramplan.memory.timeline import EMPTY_CACHE, Storage


def storages_instead(
    phases: Sequence[object], others: Sequence[object], known: dict[int, int]
) -> dict[int, list[Storage]] | None:
    """The storages of a run's kinds that change if it has other phases; None if more than that changes.

    Args:
        phases: the phases that the run was laid out with.
        others: those of another batch.
        known: the first kind of each of `phases` that has kinds of its own.

    Returns:
        The storages by the number of their first kind.
    """
    if len(phases) != len(others):
        return None
    changed = {}
    for one, other in zip(phases, others, strict=True):
        if not _are_alike(one, other):
            return None
        if isinstance(other, RolloutPhase | ShardedScoring):
            changed[known[id(one)]] = other.kinds
    return changed


def _are_alike(one: object, other: object) -> bool:
    """Whether two phases have the same events, whatever the sizes."""
    if isinstance(one, RolloutPhase) and isinstance(other, RolloutPhase):
        return one is other or (
            (one.name, one.needs) == (other.name, other.needs)
            and _places(one.kinds) == _places(other.kinds)
            and one.events == other.events
            and one.kind_of == other.kind_of
        )
    if isinstance(one, ShardedScoring) and isinstance(other, ShardedScoring):
        scored, again = one.step.unfolded, other.step.unfolded
        return (
            (one.name, one.phase, one.forwards, one.needs) == (other.name, other.phase, other.forwards, other.needs)
            and not (one.others or other.others)
            and do_the_same(one.step.record, other.step.record)
            and scored.events == again.events
            and scored.source == again.source
            and _places(one.kinds) == _places(other.kinds)
        )
    if isinstance(one, VllmRollout) and isinstance(other, VllmRollout):
        return one.takes_as_much_as(other)
    return False


def _places(kinds: Sequence[Storage]) -> list[tuple[bool, int, bool]]:
    """What of each kind a layout depends on: where it is allocated."""
    return [(kind.in_kernel, kind.stream, kind is EMPTY_CACHE) for kind in kinds]
