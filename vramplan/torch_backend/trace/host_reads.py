"""What a program reads back from the device: a trace has no data, and answers what it knows of the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job

aten = torch.ops.aten

NEEDS_DATA = {aten._local_scalar_dense.default, aten.nonzero.default}
"""Operations whose result is a value, or has as many rows as values say."""

ASKS_WHETHER_PACKED = ("_is_packed_sequence", "_flash_attention_forward")
"""Functions of transformers that ask whether several samples share a row (the second tests what the first returns)."""
ASKS_WHETHER_ALONE = ("find_packed_sequence_indices",)
"""And those that ask the opposite."""


class HostReads:
    """Answers to ``item()``, ``bool()`` and ``nonzero()`` from transformers' mask and flash code; refuses all others.

    A padded batch is taken at its worst, every position of it valid; a packed row as one long sequence, whose masks are
    those of a packed one.
    """

    def __init__(self, job: Job, owner: str) -> None:
        self.job, self.owner = job, owner

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data, or NotImplemented where `func` is none.

        Raises:
            UnsupportedError: where the model itself asks.
        """
        if func is aten._local_scalar_dense.default:
            if getattr(args[0], "constant", None) is not None:
                return NotImplemented
            return self._scalar(args[0], module)
        if func is aten.nonzero.default:
            caller = _asker()
            if caller is None:
                return NotImplemented
            rows = args[0].numel() if caller != "prepare_fa_kwargs_from_position_ids" else 1  # first positions
            return torch.empty((rows, args[0].dim()), dtype=torch.int64, device=args[0].device)
        return NotImplemented

    def _scalar(self, tensor: torch.Tensor, module: Callable[[], str]) -> Any:
        caller = _asker()
        if caller is None:
            raise UnsupportedError(
                f"{self.owner}: {module() or 'the model'} reads a value of a {tensor.dtype} tensor of shape"
                f" {tuple(tensor.shape)} (item, bool) to decide what to do; a trace has no data"
            )
        if tensor.dtype != torch.bool:
            return self.job.sequence_length
        if caller in (*ASKS_WHETHER_PACKED, *ASKS_WHETHER_ALONE):
            return (self.job.batches == "packed") == (caller in ASKS_WHETHER_PACKED)
        return self.job.batches != "padded"


def _asker() -> str | None:
    """The function of transformers' mask or flash code that asks; None where something else does."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(("masking_utils.py", "modeling_flash_attention_utils.py")):
            return str(frame.f_code.co_name)
        frame = frame.f_back
    return None
