"""Hunyuan's dense models: Llama with norms on the heads of q and k, behind their rotation.

Mirrors transformers 5.23, modeling_hunyuan_v1_dense.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, rotary
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"))
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Attention with q and k rotated, then normed."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if heads_first_grads(q, heads.key, ctx, kind)[1]:
        v = ops.heads_first(v)
    net.tape.module = "self_attn"
    q, k = rotary(ops.heads_first(q), ops.heads_first(k), ctx, kind)
    q = net.rms_norm("self_attn.query_layernorm", q)
    k = net.rms_norm("self_attn.key_layernorm", k)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


ARCHITECTURES = {"hunyuan_v1_dense": Architecture(decoder=Decoder(layer))}
