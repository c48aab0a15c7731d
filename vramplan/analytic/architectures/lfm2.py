"""LFM2: most layers are a short convolution between two gates, the others attend; with experts, or without.

Mirrors transformers 5.23, modeling_lfm2.py and modeling_lfm2_moe.py.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import delta_kernels
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.gated_delta import convolved
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, declare, routed
from vramplan.analytic.layers.rope import heads_first_grads, rotary
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config
from vramplan.units import round_up

NAMES = ("w1", "w3", "w2")
"""Gate, up and down of the feed-forward."""


FeedForward = Callable[[Modules, Config, Tensor, LayerKind], Tensor]


def lfm2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, feed: FeedForward) -> Tensor:
    """Norm, convolution or attention, add; norm, feed-forward, add."""
    residual = x
    weights: list[Tensor] = []
    if kind.recurrent:
        x = short_convolution(net, c, net.rms_norm("operator_norm", x), ctx)
    else:
        x, *weights = lfm2_attention(net, c, net.rms_norm("operator_norm", x), ctx, kind)
    x = ops.add(x, residual, "residual stream")
    return ops.add(x, feed(net, c, net.rms_norm("ffn_norm", x), kind), "residual stream")


def plain(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """Lfm2MLP."""
    return gated(net, "feed_forward", x, inner_width(c), "silu", names=NAMES)


def mixture(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """Lfm2MoeSparseMoeBlock, whose forward holds the router's logits; the first layers are no mixtures."""
    if kind.dense:
        return gated(net, "feed_forward", x, c.count("intermediate_size", 7168), "silu", names=NAMES)
    experts = Experts(
        c.count("num_experts", 32), c.count("num_experts_per_tok", 4), c.count("moe_intermediate_size", 1792), "silu"
    )
    rows = flat(x)
    declare(net, "feed_forward.experts", x.shape[-1], experts)
    logits, to = router(net, c, rows, experts)
    out = routed(net, "feed_forward.experts", rows, to, experts).view(*x.shape)
    del logits
    return out


def router(net: Modules, c: Config, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """Lfm2MoeTopKRouter: a sigmoid for each expert, and a correction in fp32 that helps to choose."""
    net.routers.add("feed_forward.gate")
    net.tape.module = "feed_forward.gate"
    logits = ops.linear(x, net.parameter("feed_forward.gate.weight", experts.number, x.shape[-1]), None)
    shares = ops.sigmoid(logits)
    if c.flag("use_expert_bias", True):
        corrected = ops.add(shares, net.resident((experts.number,), "fp32"), "corrected scores")
        values, which = ops.top(corrected, experts.top, "scores of a token's experts")
        del values
        shares = ops.gather(shares, which, which.shape)
    else:
        shares, which = ops.top(shares, experts.top, "scores of a token's experts")
    if c.flag("norm_topk_prob", True):
        shares = ops.divide(shares, ops.shift(ops.total(shares)))
    return logits, (ops.scale(shares, "scaled shares"), which)


def inner_width(c: Config) -> int:
    """Width of the feed-forward: two thirds of what is given, rounded up, unless block_auto_adjust_ff_dim is false."""
    width = c.count("block_ff_dim", c.count("intermediate_size", 12288))
    if not c.flag("block_auto_adjust_ff_dim", True):
        return width
    factor = c.number("block_ffn_dim_multiplier", 1.0)
    return round_up(int(factor * int(2 * width / 3)), c.count("block_multiple_of", 256))


def short_convolution(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Lfm2ShortConv: one projection makes two gates and the input of a convolution without activation."""
    batch, _, width = x.shape
    bias, size = c.flag("conv_bias", False), c.count("conv_L_cache", 3)
    kernel = net.parameter("conv.conv.weight", width, 1, size)
    shift = net.parameter("conv.conv.bias", width) if bias else None
    if ctx.row_mask is not None:
        net.tape.module = "conv"
        x = ops.mul(x, ctx.row_mask, "padding set to 0")
    joint = net.linear("conv.in_proj", x, 3 * width, bias)
    net.tape.module = "conv"
    first, second, values = ops.split(joint, width, width, width)
    mixed = ops.mul(first, values, "gated")
    if ctx.cache is not None:
        ctx.cache.append(net.tape.empty((batch, width, size), mixed.dtype, "cached tokens"))
    if ctx.mixer_packages:
        mixed = delta_kernels.convolved(mixed, kernel, shift)
    else:
        mixed = convolved(mixed, kernel, shift, None)
    if ctx.cache is not None:
        mixed = ops.sliced(mixed, mixed.shape)
    out = ops.mul(second, mixed, "gated")
    out = net.linear("conv.out_proj", out, width, bias)
    del x, joint, first, second, values, mixed
    return out


def lfm2_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Attention with a norm of each head of q and k."""
    heads = heads_of(c)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim).view(batch, length, heads.query, heads.dim)
    kv_first = heads_first_grads(q, heads.key, ctx, kind)[1]
    q = net.rms_norm("self_attn.q_layernorm", ops.heads_first(q))
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim).view(batch, length, heads.key, heads.dim)
    k = net.rms_norm("self_attn.k_layernorm", ops.heads_first(k))
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim).view(batch, length, heads.key, heads.dim)
    if kv_first:
        v = ops.heads_first(v)
    net.tape.module = "self_attn"
    q, k = rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.out_proj", out, width), *weights


def corrections(c: Config) -> list[Input]:
    """A number for each expert of each mixture."""
    mixtures = sum(not kind.dense for kind in kinds_of_mixture(c)) if c.flag("use_expert_bias", True) else 0
    return [Input("expert_bias", (c.count("num_experts", 32),), "fp32")] * mixtures


def kinds_of_mixture(c: Config) -> list[LayerKind]:
    """The same, of which the first are no mixtures."""
    dense = c.count("num_dense_layers") if c.get("num_dense_layers", 2) else 0
    return [kind._replace(dense=layer < dense) for layer, kind in enumerate(kinds(c))]


def kinds(c: Config) -> list[LayerKind]:
    """Layers that attend by layer_types or full_attn_idxs; without either, all do."""
    layers, types, numbers = c.count("num_hidden_layers"), c.get("layer_types"), c.get("full_attn_idxs")
    if types is not None:
        return [LayerKind(recurrent=name == "conv") for name in types]
    return [LayerKind(recurrent=numbers is not None and layer not in numbers) for layer in range(layers)]


ARCHITECTURES = {
    "lfm2": Architecture(
        decoder=Decoder(
            lambda net, c, x, ctx, kind: lfm2(net, c, x, ctx, kind, plain),
            norm_name="model.embedding_norm",
            attention_dropout=("no_attention_dropout", 0.0),
        ),
        stacks=one_stack(kinds),
        tied=True,
        mixer_packages="causal-conv1d",
    ),
    "lfm2_moe": Architecture(
        decoder=Decoder(
            lambda net, c, x, ctx, kind: lfm2(net, c, x, ctx, kind, mixture),
            norm_name="model.embedding_norm",
            attention_dropout=("no_attention_dropout", 0.0),
        ),
        stacks=one_stack(kinds_of_mixture),
        tied=True,
        buffers=corrections,
        refuses=ROUTED,
        mixer_packages="causal-conv1d",
    ),
}
