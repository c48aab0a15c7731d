"""Hunyuan: Llama with norms on the heads of q and k, behind their rotation.

Mirrors transformers 5.23, modeling_hunyuan_v1_dense.py, modeling_hunyuan_v1_moe.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures import moe
from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import moe_linear_experts
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.attention_kernels import softmax_fp32
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated, gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, routed
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


def mixture_layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, mixture, add."""
    return moe.layer(net, c, x, ctx, kind, attention, mixture)


def mixture(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """HunYuanMoEV1Moe: a feed-forward for all tokens first; the router's weight is a linear layer in fp32."""
    width, act = c.count("intermediate_size"), c.text("hidden_act", "silu")
    experts = Experts(c.count("num_experts"), c.count("moe_topk"), width, act)
    shared = gated(net, "mlp.shared_mlp", x, width, act)
    rows = moe.flat(x)
    logits = net.linear("mlp.gate.wg", ops.to(rows, "fp32", "tokens in fp32"), experts.number, dtype="fp32")
    best, which = ops.top(softmax_fp32(logits), experts.top, "shares of a token's experts")
    best = ops.divide_in_place(best, ops.total(best))
    held: list[Tensor] = []
    if net.training.linear_experts:
        best = ops.to(best, rows.dtype, "shares of a token's experts")
        out, held = moe_linear_experts.in_turn(net, "mlp.experts", rows, (best, which), experts)
    else:
        out = routed(net, "mlp.experts", rows, (ops.to(best, logits.dtype), which), experts)
    out = ops.add(out.view(*x.shape), shared, "output")
    del logits, held
    return out


ARCHITECTURES = {
    "hunyuan_v1_dense": Architecture(decoder=Decoder(layer)),
    "hunyuan_v1_moe": Architecture(decoder=Decoder(mixture_layer), refuses=moe.ROUTED, peft_experts="qwen2_moe"),
}
