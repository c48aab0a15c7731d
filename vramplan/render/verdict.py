"""The verdict in words and figures, the same on every surface: terminal, notebook, report and site."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from vramplan.render.figures import free_gib, gib, room_gib

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate

TIGHT = 0.05
"""Share of the GPU: a plan that leaves less than this beside the margin is said to be tight."""

Outcome = Literal["fits", "depends", "without margin", "does not fit"]
SIGNS: Mapping[Outcome, tuple[str, str]] = MappingProxyType(
    {
        "fits": ("✓", "Fits"),
        "depends": ("!", "Depends"),
        "without margin": ("≈", "Fits only without margin"),
        "does not fit": ("✗", "Does not fit"),
    }
)
"""Sign and words of each outcome."""


def outcome_of(fits: bool, fits_without_margin: bool) -> Outcome:
    """The outcome of a job that is known whole."""
    return "fits" if fits else "without margin" if fits_without_margin else "does not fit"


def outcome(estimate: Estimate) -> Outcome:
    """The outcome of an estimate."""
    return outcome_of(estimate.fits, estimate.fits_without_margin)


def subject(model: str, gpu: str, num_gpus: int) -> str:
    """What is trained on what, the model without its owner."""
    return f"{model.rpartition('/')[2]} on {f'{num_gpus} × ' if num_gpus > 1 else ''}{gpu}"


def need_of_capacity(need_bytes: int, capacity_bytes: int) -> tuple[str, str]:
    """GiB of the need and of the capacity, rounded against the run; what fits never seems larger than the GPU."""
    need, capacity = gib(need_bytes), free_gib(capacity_bytes)
    return (min(need, capacity, key=float) if need_bytes <= capacity_bytes else need), capacity


def room(outcome: Outcome, need_bytes: int, capacity_bytes: int, margin_bytes: int, reason: str = "") -> str:
    """What is free of the GPU, or missing; `reason` says why it does not fit if it needs no more than there is."""
    left, margin = room_gib(capacity_bytes, need_bytes), gib(margin_bytes)
    if outcome == "without margin":
        return f"headroom {left if need_bytes <= capacity_bytes else '0.0'}, less than the margin {margin}"
    if need_bytes > capacity_bytes:
        return f"{left[1:]} too much"
    if reason:
        return reason
    # the figures are rounded against each other: what fits has its margin
    share = f", of which margin {min(margin, left, key=float)}" if margin_bytes else ""
    return f"headroom {left}{share}"


def doubts(estimate: Estimate, is_longest: bool = False) -> list[str]:
    """What could turn a verdict that is close: samples of different lengths, a cache that is given back.

    `is_longest` says that its length is the longest of several that fits: of that it is no news that it is tight.
    """
    if estimate.num_cache_releases and estimate.fits_without_margin:
        return [
            "Full: PyTorch frees its cache within a step to go on, which is slow; on a larger GPU more would be in use"
        ]
    if estimate.num_cache_releases:
        return ["PyTorch frees its cache within a step to need no more than that, which is slow"]
    tight = estimate.fits and not is_longest and estimate.spare_bytes < TIGHT * estimate.capacity_bytes
    job = estimate.job
    if not tight or job.lengths is not None or job.expandable_segments or job.batches == "packed":
        return []
    return [f"Tight: {free_gib(estimate.spare_bytes)} GiB above the margin; samples of varying length can need more"]


FRAGMENTED = "no free block is large enough"


def reason_of(estimate: Estimate) -> str:
    """Why an estimate does not fit although it needs no more than there is; empty if it needs more, or fits."""
    return "" if estimate.fits_without_margin else FRAGMENTED
