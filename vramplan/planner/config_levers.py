"""What would make a configuration fit, in the words of its own framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.gpu import Gpu
from vramplan.memory.estimate import Estimate
from vramplan.planner.lever_effects import Advice
from vramplan.planner.monotone_search import LENGTH_STEP, largest
from vramplan.planner.suggest import Search

MOST_TRIES = 32

Estimated = Callable[[dict[str, Any]], Estimate]
"""The estimate of the job with these fields changed."""


@dataclass(frozen=True, slots=True)
class Counsel:
    """A change that helps, and what comes of it."""

    change: str
    """In words of the command line."""
    settings: tuple[str, ...]
    """In the framework's own; empty for another card."""
    batch: tuple[str, ...]
    """What the batch is set to beside it, where the configuration has another."""
    fits: bool
    device_total_bytes: int
    cost: str
    card: str = ""
    """Another card's size."""


def reserve_headroom(card: Gpu, one: Estimate, spare_bytes: int) -> Gpu:
    """The card with so much less that what fits it, margin included, leaves this much free of the whole one."""
    if spare_bytes <= one.margin_bytes:
        return card
    capacity = one.capacity_bytes
    usable = (capacity - spare_bytes) * capacity // (capacity - one.margin_bytes)
    return card.model_copy(update={"held_bytes": card.held_bytes + capacity - usable})


def counsels(
    reading: ParsedConfig, search: Search, estimated: Estimated, shortest: int, spare_bytes: int
) -> list[Counsel]:
    """Each change that the framework has words for; of lengths the largest that fits, down to `shortest` tokens.

    Where more than the margin has to stay free, each is estimated again on the whole card, on which torch caches more.
    """
    found = []
    smallest = search.smallest.job
    batch = {name: getattr(smallest, name) for name in ("micro_batch_size", "gradient_accumulation_steps")}
    for advice in search.advice:
        update, need, fits = dict(advice.update), advice.device_total_bytes, advice.fits
        brought = reading.strategy_settings.get(update.get("strategy", ""), {})
        if update and not reading.words(dict([*update.items()][:1])):
            continue
        if not update and spare_bytes > search.smallest.margin_bytes:  # a card's own share is not known here
            continue
        if "sequence_length" in update:
            solved = _longest(smallest.sequence_length, lambda one: estimated(batch | one), shortest, spare_bytes)
            if solved is not None:
                update = {"sequence_length": solved.job.sequence_length}
                need, fits = solved.device_total_bytes, True
        elif update and (brought or (fits and spare_bytes > search.smallest.margin_bytes)):
            one = estimated({**batch, **brought, **update})
            need, fits = one.device_total_bytes, _leaves(one, spare_bytes)
        settings = {name: value for name, value in update.items() if getattr(search.job, name) != value}
        found.append(
            Counsel(
                advice.change,
                tuple(reading.say(settings)),
                tuple(reading.say(_batch(reading, search, advice))),
                fits,
                need,
                advice.cost,
                "" if update else f"{advice.change.partition(' ')[2]} ({advice.why})",
            )
        )
    return found


def _batch(reading: ParsedConfig, search: Search, advice: Advice) -> dict[str, int]:
    """The batch that the figures are for, where the configuration has another."""
    if advice.micro_batch_size == reading.job["micro_batch_size"]:
        return {}
    a_card = search.global_batch_size // search.job.data_parallel
    return {
        "micro_batch_size": advice.micro_batch_size,
        "gradient_accumulation_steps": max(1, a_card // advice.micro_batch_size),
    }


def _leaves(one: Estimate, spare_bytes: int) -> bool:
    return one.fits and one.headroom_bytes >= spare_bytes


def _longest(length: int, estimated: Estimated, shortest: int, spare_bytes: int) -> Estimate | None:
    """The most tokens below `length` that fit."""
    least = shortest // LENGTH_STEP
    tried: dict[int, Estimate] = {}

    def fits(steps: int) -> bool:
        try:
            tried[steps] = estimated({"sequence_length": (least + steps) * LENGTH_STEP})
        except VramplanError:
            return False
        return _leaves(tried[steps], spare_bytes)

    most = max(1, (length - 1) // LENGTH_STEP - least)
    steps, _ = largest(max(1, most // 2), fits, MOST_TRIES, most)
    return tried[steps] if steps else None
