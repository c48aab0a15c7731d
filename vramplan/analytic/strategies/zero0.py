"""DeepSpeed without ZeRO (stage 0): every GPU holds everything, with the engine's own mixed precision.

Mirrors deepspeed 0.19: a half-precision model gets fp32 copies of all trainable weights, one by one
(runtime/fp16/unfused_optimizer.py: FP16_UnfusedOptimizer, for bf16 as well), and gradients are reduced in joined copies
after the last micro-batch (runtime/engine.py: allreduce_no_retain).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step

BUCKET = 500_000_000
"""Elements from which on a joined copy is reduced, whatever reduce_bucket_size says (MEMORY_OPT_ALLREDUCE_SIZE)."""


class ZeroStage0(Strategy):
    """One GPU's part of a run, which is all of it."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.masters = [[replace(weight, dtype="fp32") for weight in group] for group in self.groups(step.trained)]
        """fp32 copies that the optimizer updates instead of a half-precision model's weights."""
        self.missing: list[int] = []
        """Gradients of zeros, for weights that this batch did not reach."""

    def prepare(self) -> None:
        """Allocate the fp32 copies, and create the states by a step with zero gradients (``__init__``)."""
        if self.job.dtype == "fp32":
            return
        record, trained = self.record, self.step.trained
        masters = [weight for group in self.masters for weight in group]
        for weight, master in zip([w for group in self.groups(trained) for w in group], masters, strict=True):
            clone = record.allocate(_like(weight, "temporary", "clone"))
            record.allocate(_like(master, "optimizer_state", "fp32 copies of weights that train"))
            record.free(clone)
        zeros = [record.allocate(_like(weight, "temporary", "zero gradients")) for weight in (*trained, *masters)]
        self._step(first=True)
        record.free_all(zeros)

    def backward_ends(self) -> None:
        """Reduce the last micro-batch's gradients, several in one copy (_get_gradients_for_reduction)."""
        if not self.is_last:
            return
        absent = [one for one in self.step.placed if one.parameter.trains and not one.parameter.is_reached]
        sizes = [one.parameter.num_elements * DTYPE_BYTES[one.parameter.dtype] for one in absent]
        self.missing = [self.record.allocate(Storage(size, "gradient", "zero gradients")) for size in sizes]
        joined: list[Weight] = []
        count = 0
        for weight in self.step.trained:
            joined.append(weight)
            count += weight.num_elements
            if count > BUCKET:
                self._reduce(joined)
                joined, count = [], 0
        self._reduce(joined)

    def _reduce(self, joined: list[Weight]) -> None:
        """Reduce several gradients in a joined copy; a single one in place."""
        self.send("all_reduce", sum(one.num_bytes for one in joined))
        if len(joined) > 1:
            size = sum(one.num_bytes for one in joined)
            label = "gradients joined for their reduction"
            self.record.free(self.record.allocate(Storage(size, "communication", label, f"{len(joined)} gradients")))

    def optimize(self, first: bool) -> None:
        """Allocate fp32 gradients besides the model's, and step on the copies (step)."""
        if self.job.dtype == "fp32":
            super().optimize(first)
            return
        record, gradients = self.record, []
        for group in self.masters:
            for weight in group:
                record.free(record.allocate(_like(weight, "temporary", "gradient in fp32 for its norm")))
            gradients += [record.allocate(_like(weight, "gradient", "gradients in fp32")) for weight in group]
        self._step(first=False)
        record.free_all(gradients)

    def _step(self, first: bool) -> None:
        for group in self.masters:
            optimizer_of(self.job.optimizer).step(self.record, group, first)

    def drop_gradients(self, offset: int) -> None:
        """Set gradients to None (``zero_grad``)."""
        super().drop_gradients(offset)
        self.record.free_all(self.missing)
        self.missing = []


def _like(weight: Weight, category: str, label: str) -> Storage:
    return Storage(weight.num_bytes, category, label, f"{' x '.join(map(str, weight.shape))} {weight.dtype}")
