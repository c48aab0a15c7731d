"""The second model that gives a reference or teaches, next to the one that trains: how each strategy keeps and runs it.

TRL prepares it apart (trl 1.16, models/utils.py: prepare_deepspeed, prepare_fsdp): below ZeRO-3 whole on every GPU, in
an engine of stage 0; at stage 3 in one of its own; under FSDP 1 wrapped like the model that trains, under FSDP 2 as one
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.fsdp1 import Fsdp1
from vramplan.analytic.strategies.fsdp2 import Fsdp2, Group
from vramplan.analytic.strategies.fsdp2_torchtune import TorchtuneFsdp2
from vramplan.analytic.strategies.zero3 import ZeroStage3
from vramplan.analytic.unfolded_step import buffers_of
from vramplan.inputs.sharding import Zero
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step


def second_model(step: Step, record: Recorder) -> Strategy:
    """The reference of a job that loads one."""
    if step.job.layers_of == "torchtune":
        return TorchtuneReference(step, record)
    if step.job.strategy == "fsdp":
        return (Fsdp1Reference if step.job.fsdp.version == 1 else Fsdp2Reference)(step, record)
    if step.job.strategy == "zero3":
        return Zero3Reference(step if step.setting.teacher is None else step.of_teacher(), record)
    return WholeReference(step, record)


def frozen(step: Step) -> list[Placed]:
    """The second model's weights, none of which train."""
    return [
        replace(one, parameter=replace(one.parameter, trains=False, is_reached=False, gradient=()))
        for one in step.second_placed
    ]


class WholeReference(Strategy):
    """Every GPU holds all of it (under DeepSpeed's stages below 3, in an engine of stage 0)."""

    def load(self) -> None:
        teacher = self.step.setting.teacher
        own = [storage for one in self.step.second_placed for storage in one.storages()]
        own += buffers_of(teacher or self.step.setting)
        name = "reference" if teacher is None else "teacher"
        self.record.allocate_all([replace(one, label=f"{name} {one.label}") for one in own])


class Fsdp1Reference(Fsdp1):
    """Wrapped like the model that trains; the root stays gathered after its first forward: no backward ends it."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def load(self) -> None:
        super().load()
        self.record.allocate_all(buffers_of(self.step.setting))


class Zero3Reference(ZeroStage3):
    """An engine without an optimizer, with a coordinator of its own.

    Its settings that are "auto" become DeepSpeed's defaults: transformers fills them in when training begins, and TRL's
    own values go under names that DeepSpeed does not read (deepspeed 0.19, runtime/zero/config.py).
    """

    is_reference = True

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def own_settings(self) -> Zero:
        return self.job.zero.by_deepspeed()

    def load(self) -> None:
        super().load()
        self.record.allocate_all(buffers_of(self.step.setting))


class Fsdp2Reference(Fsdp2):
    """One group of all weights, which a forward has twice: as received, and copied out of that."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def groups_of_weights(self) -> tuple[list[Group], dict[int, Group], list[Group]]:
        return [Group("reference", self.divided, self.shares, self.job.num_gpus, keeps=True)], {}, []

    def load(self) -> None:
        super().load()
        self.record.allocate_all(buffers_of(self.step.setting))

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        self.phase = piece.phase
        self._forward(self.before, events, offset)

    def forward_ends(self) -> None:
        self._free_held()
        if self.job.fsdp.reshard_after_forward:
            self._drop(self.before[0])


class TorchtuneReference(TorchtuneFsdp2):
    """Sharded as the model that trains (torchtune 0.6.1, full_dpo_distributed.py: _setup_reference_model)."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def load(self) -> None:
        super().load()
        self.record.allocate_all(buffers_of(self.step.setting))
