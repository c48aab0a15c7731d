"""The second model that gives a reference, next to the one that trains: how each strategy keeps and runs it.

TRL prepares it apart (trl 1.16, models/utils.py: prepare_deepspeed, prepare_fsdp): below ZeRO-3 whole on every GPU, in
an engine of stage 0; under FSDP 1 wrapped like the model that trains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.fsdp1 import Fsdp1
from vramplan.analytic.unfolded_step import buffers_of, reference_storages
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step


def second_model(step: Step, record: Recorder) -> Strategy:
    """The reference of a job that loads one."""
    if step.job.strategy == "fsdp" and step.job.fsdp.version == 1 and step.job.task != "grpo":
        return Fsdp1Reference(step, record)
    return WholeReference(step, record)


def frozen(step: Step) -> list[Placed]:
    """The model's weights, none of which train, without adapters."""
    whole = [one for one in step.placed if not one.parameter.is_adapter]
    return [
        replace(one, parameter=replace(one.parameter, trains=False, is_reached=False, gradient=())) for one in whole
    ]


class WholeReference(Strategy):
    """Every GPU holds all of it (under DeepSpeed's stages below 3, in an engine of stage 0)."""

    def load(self) -> None:
        self.record.allocate_all(reference_storages(self.step.placed, self.step.setting))


class Fsdp1Reference(Fsdp1):
    """Wrapped like the model that trains; the root stays gathered after its first forward: no backward ends it."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def load(self) -> None:
        super().load()
        self.record.allocate_all(buffers_of(self.step.setting))
