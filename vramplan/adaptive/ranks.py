"""What the ranks of a data-parallel run tell each other: sums of numbers, and the mean of their gradients.

Without torch.distributed, or in a process group of one, every function here returns at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from vramplan.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn

BUCKET_BYTES = 25 << 20
"""Of gradients that are sent together: DistributedDataParallel's default bucket."""


class Ranks:
    """The processes that share a global batch; each holds the whole model.

    Args:
        device: Where small tensors for the collectives are made: the model's device.
        group: The process group; None: all processes.
    """

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self.device, self.group = device, group
        joined = dist.is_available() and dist.is_initialized()
        self.size: int = dist.get_world_size(group) if joined else 1
        self.rank: int = dist.get_rank(group) if joined else 0

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all ranks, the same bits on each of them."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self.group)
        return list(sums.tolist())

    def largest(self, number: int) -> int:
        """The largest over all ranks."""
        if self.size == 1:
            return number
        largest = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest.item())

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the ranks, as DistributedDataParallel does at the end of a backward.

        A rank without a gradient that another rank has counts as zero; a gradient that no rank has stays None. Needs
        room for one bucket of 25 MiB, or of the largest gradient. The order of operations is DDP's (each gradient times
        1 / ranks, then summed), so that two ranks get its bits.

        Raises:
            UnsupportedError: for a sparse gradient.
        """
        if self.size == 1:
            return
        has_gradient = torch.tensor([weight.grad is not None for weight in parameters], device=self.device).int()
        dist.all_reduce(has_gradient, dist.ReduceOp.MAX, group=self.group)
        gradients = []
        for weight, is_needed in zip(parameters, has_gradient.tolist(), strict=True):
            if is_needed and weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if weight.grad is not None:
                gradients.append(weight.grad)
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise UnsupportedError("a sparse gradient (nn.Embedding with sparse=True) is not averaged over ranks")
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket]).mul_(1 / self.size)
            dist.all_reduce(flat, group=self.group)
            parts = flat.split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one dtype on one device, up to `BUCKET_BYTES` together."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        is_other = bucket and (gradient.dtype, gradient.device) != (bucket[0].dtype, bucket[0].device)
        if is_other or (bucket and size + gradient.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket
