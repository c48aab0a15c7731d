"""One GPU whose weights are updated within backward, each by an optimizer of its own, which drops its gradient.

torchtune 0.6.1, training/memory.py: register_optim_in_bwd_hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.strategies.gradient_hooks import GradientHooks
from vramplan.memory.optimizer_steps import has_levels, level_tables
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step


class OptimizerInBackward(GradientHooks):
    """One GPU."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.weights = {(one.layer, one.name): one.weight for one in step.placed if one.parameter.trains}
        self.update_one = optimizer_of(self.job.optimizer).step_in(self.job.loop)
        self.is_first = True
        """Whether the optimizers have no states yet."""

    def take(self, layer: int | None, name: str, gradient: int) -> None:
        weight, record = self.weights[layer, name], self.record
        tables = level_tables(self.job.optimizer) if self.is_first and has_levels(weight) else []
        others = [table for table in tables if record.has(table)]
        self.update_one(record, [weight], self.is_first)
        record.allocate_all(others)  # which optimizers do not share
        record.free(gradient)

    def optimize(self, first: bool) -> None:
        self.is_first = False
