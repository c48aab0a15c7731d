"""The time that communication adds to a training step: what GPUs send each other, and what computation hides of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.step_time.link_rates import (
    HOST_BYTES_PER_SECOND,
    HOST_BYTES_PER_WEIGHT,
    PASSES,
    Kind,
    collective_seconds,
    group_of,
    host_copy_seconds,
    kernel_share,
)

Phase = Literal["forward", "backward", "optimizer"]


class Transfer(NamedTuple):
    """Operations of one kind in a phase of a micro-step, or in the optimizer's step."""

    kind: Kind
    phase: Phase
    is_last: bool
    """Whether they belong to the last micro-step before an optimizer step, or to that step itself."""
    is_hidden: bool
    """Whether they run beside computation."""
    between_replicas: bool
    """Whether they are between GPUs that hold the same shard (HYBRID_SHARD), and not between all of a replica."""
    num_bytes: int
    """Bytes of the whole tensors, of all operations together."""
    calls: int
    edge_bytes: int
    """Of these, the bytes that nothing can run beside: of a forward's first gather, of a backward's last reduction."""


class Communication(NamedTuple):
    """What one GPU sends and receives in an optimizer step."""

    transfers: tuple[Transfer, ...] = ()
    updated_on_host: int = 0
    """Number of weights of this GPU that the host updates."""


class Sent:
    """Collects what a GPU sends and receives in a step."""

    def __init__(self) -> None:
        self.updated_on_host = 0
        self._totals: dict[tuple[Kind, Phase, bool, bool, bool], list[int]] = {}

    def add(
        self,
        kind: Kind,
        phase: Phase,
        num_bytes: int,
        *,
        is_last: bool = True,
        is_hidden: bool = False,
        between_replicas: bool = False,
    ) -> None:
        """Add one operation on a tensor of `num_bytes`."""
        if num_bytes == 0:
            return
        totals = self._totals.setdefault((kind, phase, is_last, is_hidden, between_replicas), [0, 0, 0])
        if (phase == "backward" and kind in ("all_reduce", "reduce_scatter")) or (phase == "forward" and not totals[1]):
            totals[2] = num_bytes
        totals[0] += num_bytes
        totals[1] += 1

    def add_all(self, other: Sent) -> None:
        """Add the operations of another micro-step."""
        self._totals |= other._totals  # their keys say which micro-step they are of

    def communication(self) -> Communication:
        """All of it."""
        transfers = (Transfer(*key, *totals) for key, totals in self._totals.items())
        return Communication(tuple(transfers), self.updated_on_host)


def communication_seconds(
    communication: Communication, job: Job, gpu: Gpu, forward_seconds: float, backward_seconds: float
) -> float | None:
    """Seconds that communication adds to an optimizer step; None if the rate of a link is not known.

    Operations beside computation add what they take longer than it, what nothing can run beside, and the share of the
    GPU that their kernels take from it; all others add their whole time.

    Args:
        communication: What a GPU sends and receives.
        job: The job, whose accumulation counts.
        gpu: The GPU and its links.
        forward_seconds: Computation of a micro-step's forward.
        backward_seconds: Computation of a micro-step's backward.
    """
    beside = {"forward": forward_seconds, "backward": backward_seconds, "optimizer": 0.0}
    total = 0.0
    for phase, seconds in beside.items():
        for is_last, times in ((False, job.gradient_accumulation_steps - 1), (True, 1)):
            transfers = [one for one in communication.transfers if (one.phase, one.is_last) == (phase, is_last)]
            added = _added_seconds(transfers, job, gpu, seconds) if times else 0.0
            if added is None:
                return None
            total += times * added
    return total


def _added_seconds(transfers: Iterable[Transfer], job: Job, gpu: Gpu, compute_seconds: float) -> float | None:
    """Seconds that operations add to a phase with so much computation."""
    sums = phase_sums(transfers, job, gpu)
    if sums is None:
        return None
    overlap = min(1.0, compute_seconds / sums.beside_seconds) if sums.beside_seconds else 0.0
    return sums.alone_seconds + max(0.0, sums.beside_seconds - compute_seconds) + overlap * sums.taken_seconds


class PhaseSums(NamedTuple):
    """Operations of one phase, added up."""

    alone_seconds: float
    """Of those that nothing runs beside."""
    beside_seconds: float
    """Of those that run beside computation."""
    taken_seconds: float
    """Computation that these delay, since their kernels take a share of the GPU."""


def phase_sums(transfers: Iterable[Transfer], job: Job, gpu: Gpu) -> PhaseSums | None:
    """Operations of one phase, added up; None if the rate of a link is not known."""
    alone = beside = taken = 0.0
    for one in transfers:
        whole = transfer_seconds(one, one.num_bytes, one.calls, job, gpu)
        edge = transfer_seconds(one, one.edge_bytes, 1, job, gpu) if one.edge_bytes else 0.0
        if whole is None or edge is None:
            return None
        alone += edge if one.is_hidden else whole
        if one.is_hidden:
            beside += whole - edge
            taken += (whole - edge) * (kernel_share(gpu) if one.kind in PASSES else 0.0)
    return PhaseSums(alone, beside, taken)


def transfer_seconds(transfer: Transfer, num_bytes: int, calls: int, job: Job, gpu: Gpu) -> float | None:
    """Seconds of operations such as this one; None if the rate of a link is not known."""
    if transfer.kind in PASSES:
        return collective_seconds(transfer.kind, num_bytes, calls, group_of(job, transfer.between_replicas), gpu)
    return host_copy_seconds(num_bytes, gpu)


def host_optimizer_seconds(communication: Communication, job: Job) -> float:
    """Seconds of the optimizer's step on the host, which updates the weights of all GPUs of a node at a time."""
    weights = communication.updated_on_host * (job.num_gpus // job.num_nodes)
    return weights * HOST_BYTES_PER_WEIGHT / HOST_BYTES_PER_SECOND
