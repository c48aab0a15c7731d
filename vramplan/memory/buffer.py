"""A buffer of a CUDA kernel that is sized when the GPU is known."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.memory.kernel_buffers import BUFFERS


class Buffer(NamedTuple):
    """What the size of a kernel's buffer follows from."""

    kernel: str
    """A key of :data:`vramplan.memory.kernel_buffers.BUFFERS`."""
    numbers: tuple[int, ...]
    dtype: str
    """The dtype that the kernel reads."""

    def num_bytes(self, gpu: Gpu) -> int:
        """Its size on a GPU."""
        return BUFFERS[self.kernel](self.numbers, self.dtype, gpu)
