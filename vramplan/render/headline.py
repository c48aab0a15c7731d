"""The changes that stand beside a verdict: the best that is free, else the least, and a larger GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vramplan.planner.search_result import FREE, LeverEffect, Search
from vramplan.render.figures import gib


class Headline(NamedTuple):
    """A change in a few words."""

    title: str
    """Empty if there is no change."""
    text: str
    change: LeverEffect | None = None


def headlines(search: Search) -> list[Headline]:
    """What to say of changes beside the verdict of a search."""
    if search.recommended is not None:
        if not search.advice:
            return []
        best = best_free(search.advice)
        room = f"makes room for micro-batch {best.micro_batch_size} at {gib(best.device_total_bytes)} GiB"
        return [Headline("Free", f"{best.change} {room}", best)]
    micro = search.smallest.micro_batch_size
    fitting = [change for change in search.advice if change.fits]
    free = [change for change in fitting if change.cost == FREE]
    settings = [change for change in fitting if change.cost != FREE and change.update]
    gpus = [change for change in fitting if not change.update]
    if free:
        shown = [_headline("Free", best_free(free), micro)]
    elif settings:
        shown = [_headline("No free change is enough. Least change", settings[0], micro)]
    else:
        shown = [Headline("", "No change that was tried is enough on this GPU.")]
    return [*shown, *([_headline("Larger GPU", gpus[0], micro)] if gpus else [])]


def best_free(advice: Sequence[LeverEffect]) -> LeverEffect:
    """The change that needs least."""
    return min(advice, key=lambda change: change.device_total_bytes)


def _headline(title: str, change: LeverEffect, micro_batch_size: int) -> Headline:
    micro = f" at micro-batch {change.micro_batch_size}" if change.micro_batch_size != micro_batch_size else ""
    return Headline(title, f"{change.change}, {gib(change.device_total_bytes)} GiB{micro}", change)
