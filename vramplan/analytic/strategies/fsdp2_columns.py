"""verl's ``fully_shard`` up to 0.7: GPUs share the columns of weights whose rows they do not divide.

(0.7.1, utils/fsdp_utils.py: get_shard_placement_fn.) torch then copies what it gathers once more, and each gradient in
front of its reduction (2.13, _fsdp_collectives.py: foreach_all_gather_copy_out, foreach_reduce).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.fsdp import stored
from vramplan.analytic.strategies.fsdp2 import Group
from vramplan.analytic.strategies.fsdp2_verl import VerlFsdp2
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.timeline import Storage

if TYPE_CHECKING:
    from vramplan.analytic.step_record import RecordedWeight
    from vramplan.analytic.unfolded_step import Placed
    from vramplan.inputs.job import Job


def shared_dimension(shape: Sequence[int], gpus: int) -> int:
    """The first dimension that the GPUs divide; the first of all if they divide none."""
    return next((number for number, size in enumerate(shape) if size % gpus == 0), 0)


def shares_columns(job: Job, parameter: RecordedWeight) -> bool:
    """Whether the GPUs share columns of a weight."""
    return job.verl.shares_columns and job.fsdp.version == 2 and shared_dimension(parameter.shape, job.num_gpus) > 0


class VerlColumns(VerlFsdp2):
    """One GPU's part of a run."""

    def _share(self, one: Placed) -> Weight:
        weight = stored(one.parameter, self.job)
        dimension = shared_dimension(weight.shape, self.job.num_gpus)
        if not dimension:
            return super()._share(one)
        parts = [size // self.job.num_gpus if n == dimension else size for n, size in enumerate(weight.shape)]
        return replace(weight, shape=tuple(parts))

    def _by_columns(self, one: Placed) -> bool:
        return shares_columns(self.job, one.parameter)

    def _receive(self, group: Group) -> int:
        packet = super()._receive(group)
        pairs = zip(group.weights, group.members, strict=True)
        copies = [replace(storage, formula="columns, as received") for storage, one in pairs if self._by_columns(one)]
        self.record.free_all(self.record.allocate_all(copies))
        return packet

    def _reduce(self, group: Group, gradients: list[int]) -> None:
        """Copies take the place of gradients; the last that was copied is still named until all are sent."""
        elements = {one.parameter.num_elements for one in group.members if self._by_columns(one)}
        sizes = [self.record.kinds[self.record.kind_of[number]].num_bytes for number in gradients]
        copied = [size for size in sizes if elements & {size // 2, size // 4}]
        held = [Storage(copied[-1], "gradient", f"{group.name}: gradient by columns")] if copied else []
        numbers = self.record.allocate_all(held)
        super()._reduce(group, gradients)
        self.record.free_all(numbers)
