"""Sum gradients in place under a dispatch mode, as PyTorch's autograd engine does in an ordinary run.

If a tensor gets several gradients, InputBuffer::add writes the sum into the first unless it has other references
(torch/csrc/autograd/input_buffer.cpp: accumulate, can_accumulate_inplace). Under a dispatch mode every tensor counts as
a subclass (isTensorSubclassLike), and each sum would be a new tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

_ADD = torch.ops.aten.add.Tensor
_BETWEEN = ("__torch_dispatch__", "inner", "_fn", "is_in_place", "_is_engine")
"""Functions on the stack between an operation of the engine and :func:`_is_engine`."""


class GradientSums:
    """Recognizes the engine's in-place sums, by the number of references to the first gradient.

    :meth:`calibrate` counts the references that a gradient has without any from Python code.
    """

    def __init__(self) -> None:
        self._unshared: tuple[int, ...] | None = None
        self._counts: list[tuple[int, ...]] = []

    def calibrate(self, tracker: Any) -> None:
        """Run a graph with one such sum under the tracker, and drop its records."""
        self._counts.clear()
        records, events = len(tracker.records), len(tracker.events)
        with torch.enable_grad(), tracker:
            weight = torch.empty(2, 2, requires_grad=True)
            product = weight * 1.0
            (product.sin() + product.cos()).sum().backward()
            del product, weight
        assert len(self._counts) == 1, "the engine's sum of two gradients was not recognised"
        self._unshared = self._counts[0]
        del tracker.records[records:], tracker.events[events:]

    def is_in_place(self, func: Any, args: Any) -> bool:
        """Whether this operation is a sum of the engine that is written into ``args[0]``."""
        if func is not _ADD or torch.is_grad_enabled() or torch._C._current_graph_task_id() < 0 or not _is_engine():
            return False
        counts = _references(args)
        if self._unshared is None:
            self._counts.append(counts)
            return False
        unshared = all(count <= limit for count, limit in zip(counts, self._unshared, strict=True))
        return unshared and _is_dense(args[0])


def _is_dense(x: torch.Tensor) -> bool:
    """is_non_overlapping_and_dense: some order of the dimensions makes it contiguous."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _references(args: Any) -> tuple[int, ...]:
    """Reference counts of the first argument: of its C++ object, its Python object and its storage."""
    storage = args[0].untyped_storage()
    return args[0]._use_count(), sys.getrefcount(args[0]), torch._C._storage_Use_Count(storage._cdata)


def _is_engine() -> bool:
    """Whether the engine called the operation directly, not through a custom backward or a hook in Python."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
