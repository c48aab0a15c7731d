"""What would help a job that does not fit, or free its next larger batch, each change re-estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramplan.errors import VramplanError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate_cache import EstimateCache, Estimator, Lever

FREE = "free"
"""The cost of a lever that costs nothing."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that would help, re-estimated."""

    change: str
    """What to set, in words of the command line."""
    why: str
    cost: str
    """What it costs: nothing, time, accuracy or money."""
    saved_bytes: int
    """Bytes of the card that it frees at the same micro-batch; of tensors alone, where it does not fit even so."""
    fits: bool
    micro_batch_size: int
    """The micro-batch the figures are for."""
    device_total_bytes: int
    update: Mapping[str, Any] = field(default_factory=dict)
    """The same as fields of the job; empty for another card."""


def pull(spec: ModelSpec, job: Job, card: Gpu, estimator: Estimator, levers: Sequence[Lever]) -> list[Advice]:
    """What each lever saves of a job as it is, and whether it fits then.

    Raises:
        VramplanError: whatever the estimator raises of the job itself.
    """
    tried = EstimateCache(spec, job, card, estimator)
    return advise(tried, False, None, tried(job.micro_batch_size, job.gradient_accumulation_steps), levers)


def advise(
    tried: EstimateCache,
    any_fits: bool,
    following: tuple[int, int] | None,
    smallest: Estimate,
    levers: Sequence[Lever],
) -> list[Advice]:
    """Where nothing fits: whatever saves memory, and whether it fits then. Else: what frees the next pair."""
    micro, steps = smallest.micro_batch_size, smallest.gradient_accumulation_steps
    if any_fits:
        levers = [lever for lever in levers if lever.cost == FREE]
        if following is None or not levers:
            return []
        micro, steps = following
    found = []
    before = tried.begin(micro, steps)
    for lever in levers:
        changed = tried.changed(lever)
        try:
            fits = changed.fits(micro, steps)
        except VramplanError:  # a lever that this model or card does not have
            continue
        saved = before.lower_bound_bytes - changed.begin(micro, steps).lower_bound_bytes
        if (lever.card is None and saved <= 0) or (any_fits and not fits):
            continue
        need = changed.need(micro, steps)
        if fits and lever.card is None:
            saved = tried(micro, steps).device_total_bytes - need
        found.append(
            Advice(
                lever.change,
                lever.why,
                lever.cost,
                saved,
                fits,
                micro,
                need,
                lever.update if lever.card is None else {},
            )
        )
    return found
