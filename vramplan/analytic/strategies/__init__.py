"""How data-parallel cards share a step: what each keeps of the weights, and what happens around the recorded events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.autograd.recorder import Recorder
from vramplan.analytic.strategies.ddp import Replicated
from vramplan.analytic.strategies.device_map_split import Pipeline
from vramplan.analytic.strategies.fsdp1 import Fsdp1
from vramplan.analytic.strategies.fsdp2 import Fsdp2
from vramplan.analytic.strategies.zero0 import Zero0
from vramplan.analytic.strategies.zero3 import Zero3
from vramplan.analytic.strategies.zero12 import Zero

if TYPE_CHECKING:
    from vramplan.analytic.played_step import Step


def sharing_of(step: Step, record: Recorder, card: int = 0) -> Replicated:
    """What the job's strategy makes of a played step, on one of the cards."""
    if step.job.strategy == "pipeline":
        return Pipeline(step, record, card)
    kinds: dict[str, type[Replicated]] = {
        "ddp": Replicated,
        "zero0": Zero0,
        "zero1": Zero,
        "zero2": Zero,
        "zero3": Zero3,
        "fsdp": Fsdp1 if step.job.fsdp.version == 1 else Fsdp2,
    }
    return kinds[step.job.strategy](step, record)
