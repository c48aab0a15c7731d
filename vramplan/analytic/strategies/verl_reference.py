"""verl's reference: a model of its own under FSDP, whose own parts are in host memory.

(verl 0.9.1, workers/engine/fsdp/transformer_impl.py: _build_fsdp_module; before 0.8 workers/fsdp_workers.py.) It is
stored in fp32 unless it is told otherwise (trainer/config/engine/fsdp.yaml: model_dtype).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.fsdp1 import Fsdp1
from vramplan.analytic.strategies.fsdp2_verl import VerlFsdp2
from vramplan.analytic.strategies.reference import frozen
from vramplan.analytic.unfolded_step import buffers_of
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step


def verl_reference(step: Step, record: Recorder) -> Strategy:
    """The reference of a job, loaded."""
    model = (Reference1 if step.job.fsdp.version == 1 else Reference2)(step, record)
    model.offloads = True
    record.allocate_all([replace(one, label=f"reference {one.label}") for one in buffers_of(step.setting)])
    return model


class Reference1(Fsdp1):
    """Under FullyShardedDataParallel with ``CPUOffload``."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)


class Reference2(VerlFsdp2):
    """Under ``fully_shard`` with ``CPUOffloadPolicy``."""

    def own_weights(self) -> list[Placed]:
        return frozen(self.step)

    def _share(self, one: Placed) -> Weight:
        return replace(super()._share(one), dtype="fp32")
