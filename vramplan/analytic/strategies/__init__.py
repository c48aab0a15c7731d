"""Strategies: which weights, gradients and states each GPU keeps, and the events they add around a simulated step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.device_map_split import DeviceMap
from vramplan.analytic.strategies.fsdp1 import Fsdp1
from vramplan.analytic.strategies.fsdp2 import Fsdp2
from vramplan.analytic.strategies.zero0 import ZeroStage0
from vramplan.analytic.strategies.zero3 import ZeroStage3
from vramplan.analytic.strategies.zero12 import ZeroStage12
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step


def strategy_of(step: Step, record: Recorder, card: int = 0) -> Strategy:
    """The job's strategy for a simulated step, on one of the GPUs."""
    if step.job.strategy == "device_map":
        return DeviceMap(step, record, card)
    kinds: dict[str, type[Strategy]] = {
        "ddp": Strategy,
        "zero0": ZeroStage0,
        "zero1": ZeroStage12,
        "zero2": ZeroStage12,
        "zero3": ZeroStage3,
        "fsdp": Fsdp1 if step.job.fsdp.version == 1 else Fsdp2,
    }
    return kinds[step.job.strategy](step, record)
