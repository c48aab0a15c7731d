"""PyTorch's autograd engine under a watch: gradients that meet are summed in place, as in an ordinary run.

Where a tensor gets several gradients, InputBuffer::add writes the sum into the first if nobody else holds it
(torch/csrc/autograd/input_buffer.cpp: accumulate, can_accumulate_inplace). Under a dispatch mode every tensor counts as
a subclass (isTensorSubclassLike), and each sum would be one more tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

_ADD = torch.ops.aten.add.Tensor
_BETWEEN = ("__torch_dispatch__", "inner", "_fn", "of", "_is_engine")
"""Frames between an operation of the engine and the question who called it."""


class Sums:
    """Recognises the engine's sums; :meth:`calibrate` learns how many references a gradient has that nobody holds."""

    def __init__(self) -> None:
        self.alone: tuple[int, ...] | None = None
        self.seen: list[tuple[int, ...]] = []

    def calibrate(self, watch: Any) -> None:
        """Run a graph with one such sum under the watch; what it records is dropped."""
        self.seen.clear()
        records, events = len(watch.records), len(watch.events)
        with torch.enable_grad(), watch:
            weight = torch.empty(2, 2, requires_grad=True)
            product = weight * 1.0
            (product.sin() + product.cos()).sum().backward()
            del product, weight
        assert len(self.seen) == 1, "the engine's sum of two gradients was not recognised"
        self.alone = self.seen[0]
        del watch.records[records:], watch.events[events:]

    def of(self, func: Any, args: Any) -> bool:
        """Whether this operation is a sum of the engine's that goes into ``args[0]``."""
        if func is not _ADD or torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0 or not _is_engine():
            return False
        found = _references(args)
        if self.alone is None:
            self.seen.append(found)
            return False
        return all(one <= most for one, most in zip(found, self.alone, strict=True)) and _is_dense(args[0])


def _is_dense(x: torch.Tensor) -> bool:
    """is_non_overlapping_and_dense: some order of the dimensions makes it contiguous."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _references(args: Any) -> tuple[int, ...]:
    """References to the first argument, to its Python half and to its storage."""
    storage = args[0].untyped_storage()
    return args[0]._use_count(), sys.getrefcount(args[0]), torch._C._storage_Use_Count(storage._cdata)


def _is_engine() -> bool:
    """Whether no Python code stands between the engine and the operation, as a custom backward or a hook would."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
