"""Strategies: which weights, gradients and states each GPU keeps, and the events they add around a simulated step.

A strategy's module is imported when a job names it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.strategies.ddp import Strategy
    from vramplan.analytic.unfolded_step import Step


CLASSES = {
    "ddp": ("ddp", "Strategy"),
    "in_backward": ("optimizer_in_backward", "OptimizerInBackward"),
    "device_map": ("device_map_split", "DeviceMap"),
    "zero0": ("zero0", "ZeroStage0"),
    "zero1": ("zero1", "ZeroStage1"),
    "zero2": ("zero12", "ZeroStage12"),
    "zero3": ("zero3", "ZeroStage3"),
    "fsdp1": ("fsdp1", "Fsdp1"),
    "fsdp2": ("fsdp2", "Fsdp2"),
    "verl_fsdp2": ("fsdp2_verl", "VerlFsdp2"),
    "columns_fsdp2": ("fsdp2_columns", "VerlColumns"),
    "torchtune_fsdp2": ("fsdp2_torchtune", "TorchtuneFsdp2"),
}
"""Module and class of each strategy; of FSDP by its version, and whose it is."""


def strategy_of(step: Step, record: Recorder, gpu: int = 0) -> Strategy:
    """The job's strategy for a simulated step, on one of the GPUs."""
    job, name = step.job, str(step.job.strategy)
    if name == "fsdp":
        of_verl = "columns_" if job.verl.shares_columns else "verl_"
        whose = of_verl if job.loss == "log_probs" else "torchtune_" if job.layers_of == "torchtune" else ""
        name = f"{whose if job.fsdp.version == 2 else ''}fsdp{job.fsdp.version}"
    if job.optimizer_in_backward and name == "ddp":
        name = "in_backward"
    module, class_name = CLASSES[name]
    strategy: type[Strategy] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return strategy(step, record, gpu)


def gathered_bytes(step: Step) -> int:
    """Highest bytes of sharded weights that are gathered at a time in a forward without gradients."""
    return strategy_of(step, Recorder()).gathered_bytes()


def passing_bytes(step: Step) -> int:
    """The same of ``generate``, but for weights that the strategy gathers as it begins, and keeps."""
    return strategy_of(step, Recorder()).passing_bytes()
