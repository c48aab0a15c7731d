"""Nemotron 4 and Minitron: LayerNorms times ``1 + weight``, partial rotary, a feed-forward without a gate.

Mirrors transformers 5.23, modeling_nemotron.py. Nemotron-H is :mod:`vramplan.analytic.architectures.nemotron_h`.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.phi import partial
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import joined, rotate
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """NemotronLayerNorm1P: under autocast in its dtype, to which everything is cast, and not in fp32."""
    tape = net.tape
    tape.module = name
    weight, shift = (net.parameter(f"{name}.{part}", x.shape[-1]) for part in ("weight", "bias"))
    dtype = tape.autocast
    scale: Tensor = ops.shift(weight, "1 + weight")
    given: tuple[Tensor, ...] = (x, scale, shift)
    if dtype is not None:
        given = tuple(ops.to(one, dtype) for one in given)
    with tape.autocasting(None):
        return ops.layer_norm(*given)


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: on the first part of each head, concatenated with the rest at the end."""
    cos, sin = ctx.cos[False], ctx.sin[False]
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_rot, q_pass = ops.part(q, width), ops.part(q, rest) if rest else None
    k_rot, k_pass = ops.part(k, width), ops.part(k, rest) if rest else None
    rotated_q = rotate(q_rot, cos, sin)
    rotated_k = rotate(k_rot, cos, sin)
    return joined(rotated_q, q_pass), joined(rotated_k, k_pass)


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    bias, width = c.flag("attention_bias", False), c.count("intermediate_size", 24576)
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias, turn=turned, contiguous=True)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "post_attention_layernorm", x)
    act = c.text("hidden_act", "relu2")
    x = plain_mlp(net, x, "mlp.up_proj", "mlp.down_proj", width, act, c.flag("mlp_bias", False))
    return ops.add(residual, x, "residual stream")


ARCHITECTURES = {"nemotron": Architecture(decoder=Decoder(layer, norm=norm, rotary=partial(0.5)))}
