"""Helium: Llama with interleaved rotary, and norms that multiply by their weight in fp32.

Mirrors transformers 5.23, modeling_helium.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotate
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """HeliumRMSNorm: the weight is cast to fp32 first."""
    net.tape.module = name
    weight, dtype, given = net.parameter(f"{name}.weight", x.shape[-1]), x.dtype, x
    x = ops.to(given, "fp32")
    x = ops.mul(x, ops.rsqrt(ops.shift(ops.mean(ops.square(x)))), "normalised")
    return ops.to(ops.mul(ops.to(weight, "fp32"), x, "output in fp32"), dtype, "output")


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: each layer interleaves the tables anew."""
    tables = ctx.cos[False], ctx.sin[False]
    cos, sin = (q.tape.empty(table.shape, table.dtype, "rotary table, interleaved") for table in tables)
    rotated_q = rotate(q, cos, sin)
    return rotated_q, rotate(k, cos, sin)


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, c.flag("attention_bias", False), turn=turned)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "post_attention_layernorm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"), c.flag("mlp_bias", False))
    return ops.add(residual, x, "residual stream")


ARCHITECTURES = {"helium": Architecture(decoder=Decoder(layer, norm=norm), defaults={"head_dim": 128})}
