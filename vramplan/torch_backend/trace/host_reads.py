"""Answer what a model reads back from the device (item, bool, nonzero): a trace has no data, but knows the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job
from vramplan.torch_backend.trace import speech

aten = torch.ops.aten

NEEDS_DATA = {aten._local_scalar_dense.default, aten.nonzero.default}
"""Operations whose result is a value, or has a shape that depends on values."""

PACKED_IF_TRUE = ("_is_packed_sequence", "_flash_attention_forward")
"""Functions of transformers in which True means packed samples (the second tests the result of the first)."""
PACKED_IF_FALSE = ("find_packed_sequence_indices",)
"""Functions in which False means packed samples."""


class HostReads:
    """Answers ``item()``, ``bool()`` and ``nonzero()`` in transformers' mask and flash code; refuses all others.

    A padded batch is simulated at its worst, with every position valid; a packed row as one long sequence with the
    masks of a packed one.
    """

    def __init__(self, job: Job, owner: str) -> None:
        self.job, self.owner = job, owner

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data; NotImplemented for other operations.

        Raises:
            UnsupportedError: if the model's own code reads data.
        """
        if func is aten._local_scalar_dense.default:
            if getattr(args[0], "constant", None) is not None:
                return False if self._is_padded(args[0], module) else NotImplemented
            return self._scalar(args[0], module)
        if func is aten.nonzero.default:
            caller = _calling_function()
            if caller is None:
                return NotImplemented
            rows = args[0].numel() if caller != "prepare_fa_kwargs_from_position_ids" else 1  # first positions
            return torch.empty((rows, args[0].dim()), dtype=torch.int64, device=args[0].device)
        return NotImplemented

    def _is_padded(self, tensor: torch.Tensor, module: Callable[[], str]) -> bool:
        """Whether a mask's code asks if all tokens of a padded batch are valid: texts are padded, patches are not.

        Models of images read the values of their mask, so that those are known, and all ones.
        """
        asks = tensor.dtype == torch.bool and _calling_function() not in (None, *PACKED_IF_TRUE, *PACKED_IF_FALSE)
        return asks and self.job.batches == "padded" and "vision" not in module()

    def _scalar(self, tensor: torch.Tensor, module: Callable[[], str]) -> Any:
        caller = _calling_function()
        if caller is None and tensor.dtype == torch.bool and speech.compares_labels():
            return False
        if caller is None:
            raise UnsupportedError(
                f"{self.owner}: {module() or 'the model'} reads a value of a {tensor.dtype} tensor of shape"
                f" {tuple(tensor.shape)} (item, bool) to decide what to do; a trace has no data"
            )
        if tensor.dtype != torch.bool:
            return self.job.sequence_length
        if caller in (*PACKED_IF_TRUE, *PACKED_IF_FALSE):
            return self.job.joins_samples == (caller in PACKED_IF_TRUE)
        return self.job.batches != "padded"


def _calling_function() -> str | None:
    """Name of the innermost running function of transformers' mask or flash code; None for none."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(("masking_utils.py", "modeling_flash_attention_utils.py")):
            return str(frame.f_code.co_name)
        frame = frame.f_back
    return None
