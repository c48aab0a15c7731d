"""MobileNet-V5 300M, the tower of Gemma 3n, by its weights (timm 1.0, models/mobilenetv5.py: mobilenetv5_300m_enc)."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.layers.modules import Modules

NAME = "vision_tower.timm_model"
STEM, FUSED = 64, 2048


class Residual(NamedTuple):
    """A universal inverted residual: kernels of the convolutions by channel before and within, 0 for none."""

    first: int
    middle: int
    expansion: int

    def declare(self, net: Modules, name: str, given: int, made: int) -> None:
        """The weights of one block, from `given` to `made` channels."""
        inner = given * self.expansion
        convolutions = {
            "dw_start": (given, 1, self.first, self.first),
            "pw_exp": (inner, given, 1, 1),
            "dw_mid": (inner, 1, self.middle, self.middle),
            "pw_proj": (made, inner, 1, 1),
        }
        for part, shape in convolutions.items():
            if shape[-1]:
                net.parameter(f"{name}.{part}.conv.weight", *shape)
                net.parameter(f"{name}.{part}.bn.weight", shape[0])


class Attention(NamedTuple):
    """Attention with one key and value, which may be made of a smaller image."""

    heads: int
    dim: int
    shrinks: bool

    def declare(self, net: Modules, name: str, given: int, made: int) -> None:
        """The weights of one block."""
        net.parameter(f"{name}.norm.weight", given)
        net.parameter(f"{name}.attn.query.proj.weight", self.heads * self.dim, given, 1, 1)
        for part in ("key", "value"):
            if self.shrinks:
                net.parameter(f"{name}.attn.{part}.down_conv.weight", given, 1, 3, 3)
                net.parameter(f"{name}.attn.{part}.norm.weight", given)
            net.parameter(f"{name}.attn.{part}.proj.weight", self.dim, given, 1, 1)
        net.parameter(f"{name}.attn.output.proj.weight", made, self.heads * self.dim, 1, 1)


class Edge(NamedTuple):
    """A convolution over all channels, and back."""

    expansion: int

    def declare(self, net: Modules, name: str, given: int, made: int) -> None:
        """The weights of one block."""
        inner = given * self.expansion
        net.parameter(f"{name}.conv_exp.weight", inner, given, 3, 3)
        net.parameter(f"{name}.bn1.weight", inner)
        net.parameter(f"{name}.conv_pwl.weight", made, inner, 1, 1)
        net.parameter(f"{name}.bn2.weight", made)


Block = Edge | Residual | Attention
PLAIN = Residual(0, 0, 2)
GROWS: list[Block] = [Residual(5, 0, 4), Residual(3, 0, 4)]
SHRINKS: list[Block] = [Attention(12, 64, True), PLAIN]
ATTENDS: list[Block] = [Attention(16, 96, False), PLAIN]
STAGES: tuple[tuple[int, list[Block]], ...] = (
    (128, [Edge(4)] * 3),
    (256, [Residual(3, 5, 6), *GROWS * 2]),
    (640, [Residual(5, 5, 6), *[Residual(5, 0, 4)] * 7, Residual(0, 0, 1), *SHRINKS * 14]),
    (1280, [Residual(5, 5, 6), *ATTENDS * 19]),
)
"""Channels and blocks of each stage."""


def declare(net: Modules) -> None:
    """All weights of the tower."""
    net.parameter(f"{NAME}.conv_stem.conv.weight", STEM, 3, 3, 3)
    net.parameter(f"{NAME}.conv_stem.conv.bias", STEM)
    net.parameter(f"{NAME}.conv_stem.bn.weight", STEM)
    given = STEM
    for stage, (made, blocks) in enumerate(STAGES):
        for number, block in enumerate(blocks):
            name = f"{NAME}.blocks.{stage}.{number}"
            block.declare(net, name, given, made)
            if not isinstance(block, Edge):
                net.parameter(f"{name}.layer_scale.gamma", made)
            given = made
    PLAIN.declare(net, f"{NAME}.msfa.ffn", STAGES[-2][0] + STAGES[-1][0], FUSED)
    net.parameter(f"{NAME}.msfa.norm.weight", FUSED)
