"""The sizes of a Mamba 2 mixer."""

from __future__ import annotations

from typing import NamedTuple


class Mixer(NamedTuple):
    """Sizes of a Mamba 2 mixer."""

    heads: int
    head_dim: int
    groups: int
    """Heads of one group share B and C."""
    state: int
    """Width of the state of each channel."""
    kernel: int
    chunk: int
    act: str = "silu"
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    gate_first: bool = True
    """Whether the norm behind the scan multiplies by the gate first."""

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Width of B, and of C."""
        return self.groups * self.state

    @property
    def convolved(self) -> int:
        """Channels of the convolution."""
        return self.inner + 2 * self.shared
