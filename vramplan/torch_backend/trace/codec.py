"""What CSM and its codec read back from the device: sizes of convolutions, and which labels are frames of sound."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils._mode_utils import no_dispatch

FILES = ("modeling_csm.py",)
SIZES = ("stride", "kernel_size", "padding_total")
"""Buffers of a convolution that hold its sizes (modeling_mimi.py: MimiConv1d)."""


def keep_sizes(module: nn.Module) -> None:
    """Give the fake buffers of a codec's convolutions their values."""
    for one in module.modules():
        if type(one).__name__ != "MimiConv1d":
            continue
        convolution: Any = one.conv
        stride, kernel = convolution.stride[0], (convolution.kernel_size[0] - 1) * convolution.dilation[0] + 1
        for name, value in zip(SIZES, (stride, kernel, kernel - stride), strict=True):
            buffer: Any = getattr(one, name)
            with no_dispatch():
                buffer.constant = torch.tensor(value)


class Labels:
    """The labels that CSM was called with: those with tokens of the codec in them have no values."""

    def __init__(self) -> None:
        self.values: torch.Tensor | None = None

    def answer(self, func: Any, args: Any) -> torch.Tensor | None:
        """Which labels count for nothing, where the model asks; None for all other questions."""
        if func is not torch.ops.aten.eq.Scalar or function_of_csm() == "":
            return None
        asked, number = args
        if number == -101 and asked.constant is not None:
            self.values = asked.constant
        if number != -100 or asked.constant is not None or self.values is None:
            return None
        with no_dispatch():
            return (self.values == number).unsqueeze(-1).expand(asked.shape).contiguous()


def function_of_csm() -> str:
    """Name of CSM's innermost running function; "" for none."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(FILES):
            return str(frame.f_code.co_name)
        frame = frame.f_back
    return ""
