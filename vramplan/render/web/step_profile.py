"""Memory over one optimizer step in steady state, in as many columns as a picture has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from vramplan.dataclass import dataclass

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate

COLUMNS = 240
"""Of the whole step. Each shows the fullest moment of itself and its neighbours."""
REACH = 8
"""Columns on each side within which a dip between two fuller moments is not shown, or layers would show as a comb."""
FIXED = ("parameter", "optimizer_state", "gradient")
"""Categories that may be there from the beginning of a step to its end."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Bytes of live tensors by category, at the fullest moment of each column."""

    phases: tuple[tuple[str, int], ...]
    """(phase, its first column), in order."""
    levels: Mapping[str, Sequence[int]]
    """Bytes of a category in each column."""
    fixed: Mapping[str, int]
    """Bytes of a category that stay alive through the whole step."""

    @property
    def totals(self) -> list[int]:
        """Bytes of all categories in each column."""
        return [sum(sizes) for sizes in zip(*self.levels.values(), strict=True)]

    @property
    def fixed_bytes(self) -> int:
        """Bytes that stay alive through the whole step."""
        return sum(self.fixed.values())


def step_profile(estimate: Estimate, columns: int = COLUMNS) -> StepProfile | None:
    """The last optimizer step of an estimate, whose first micro-step and last are simulated; None without a timeline.

    Each phase has a share of the columns as large as its share of allocations and frees, and at least one column.
    """
    timeline = estimate.timeline
    if timeline is None:
        return None
    optimizers = [number for number, mark in enumerate(timeline.marks) if mark.phase == "optimizer"]
    first = optimizers[-2] + 1 if len(optimizers) > 1 else 1
    shown = timeline.phases()[first : optimizers[-1] + 1] if optimizers else timeline.phases()
    count = shown[-1][1] - shown[0][0].first_event
    totals = timeline.live_bytes()
    phases: list[tuple[str, int]] = []
    events: list[int] = []
    for mark, end in shown:
        phases.append((mark.phase, len(events)))
        share = max(1, round((end - mark.first_event) * columns / max(1, count)))
        edges = [mark.first_event + (end - mark.first_event) * i // share for i in range(share + 1)]
        fullest = [max(range(low, high), key=totals.__getitem__) for low, high in pairwise(edges) if low < high]
        wide = [max(fullest[max(0, i - 1) : i + 2], key=totals.__getitem__) for i in range(len(fullest))]
        events += _without_dips(wide, totals)
    levels = {name: sizes for name, sizes in timeline.by_category(events).items() if any(sizes)}
    return StepProfile(tuple(phases), levels, {name: min(levels[name]) for name in FIXED if name in levels})


def _without_dips(events: Sequence[int], totals: Sequence[int]) -> list[int]:
    """The events of a phase's columns, with those of a fuller one in narrow dips; peaks become no wider."""
    count = len(events)
    around = [
        max(events[max(0, i - REACH) : min(count, i + REACH + 1)], key=totals.__getitem__)
        for i in range(-REACH, count + REACH)
    ]
    closed = [min(around[i : i + 2 * REACH + 1], key=totals.__getitem__) for i in range(count)]
    return [own if totals[own] == totals[other] else other for own, other in zip(events, closed, strict=True)]


def phase_names(profile: StepProfile, accumulation_steps: int) -> list[str]:
    """The names of the phases: with accumulation, which micro-step they are of."""
    forwards = sum(phase == "forward" for phase, _ in profile.phases)
    names, number = [], 0
    for phase, _ in profile.phases:
        if phase == "forward" and forwards > 1:
            number += 1
            names.append(f"forward {1 if number == 1 else accumulation_steps} of {accumulation_steps}")
        else:
            names.append(phase)
    return names
