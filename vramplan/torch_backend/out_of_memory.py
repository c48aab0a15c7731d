"""Errors that mean that a GPU's memory ran out."""

from __future__ import annotations

import torch

MESSAGES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Parts of messages of libraries that allocate memory without PyTorch."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so, whichever library raises it."""
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in MESSAGES)
