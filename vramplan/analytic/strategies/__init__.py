"""Strategies: which weights, gradients and states each GPU keeps, and the events they add around a simulated step.

A strategy's module is imported when a job names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.strategies.ddp import Strategy
    from vramplan.analytic.unfolded_step import Step


def strategy_of(step: Step, record: Recorder, card: int = 0) -> Strategy:
    """The job's strategy for a simulated step, on one of the GPUs."""
    name, version = step.job.strategy, step.job.fsdp.version
    if name == "device_map":
        from vramplan.analytic.strategies.device_map_split import DeviceMap

        return DeviceMap(step, record, card)
    return _class_of(name, version)(step, record)


def _class_of(name: str, fsdp_version: int) -> type[Strategy]:
    if name == "ddp":
        from vramplan.analytic.strategies.ddp import Strategy

        return Strategy
    if name == "zero0":
        from vramplan.analytic.strategies.zero0 import ZeroStage0

        return ZeroStage0
    if name in ("zero1", "zero2"):
        from vramplan.analytic.strategies.zero12 import ZeroStage12

        return ZeroStage12
    if name == "zero3":
        from vramplan.analytic.strategies.zero3 import ZeroStage3

        return ZeroStage3
    if fsdp_version == 1:
        from vramplan.analytic.strategies.fsdp1 import Fsdp1

        return Fsdp1
    from vramplan.analytic.strategies.fsdp2 import Fsdp2

    return Fsdp2
