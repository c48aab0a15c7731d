"""Laguna: sliding layers with more heads, a gate behind attention, a sigmoid for each expert; Mellum 2.

Mirrors transformers 5.23, modeling_laguna.py, modeling_mellum.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary, rms_norm
from vramplan.analytic.architectures.llama import plain_window, window_or
from vramplan.analytic.architectures.moe import ROUTED, flat, layer, qwen3_moe
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops.recurrence import softplus
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, declare, routed, router_weight
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config


def laguna(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, gated attention, add; norm, feed-forward or mixture, add."""
    return layer(net, c, x, ctx, kind, gated_attention, feed_forward)


def gated_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """LagunaAttention: softplus of a projection in fp32 gates each head's output, or each of its numbers."""
    heads, bias = heads_of(c)._replace(query=kind.heads), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q, k, v = (
        net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    q, k = rms_norm(net, "self_attn.q_norm", q), rms_norm(net, "self_attn.k_norm", k)
    net.tape.module = "self_attn"
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    per_head = c.get("gating", True) in (True, "per-head")
    gate = net.linear("self_attn.g_proj", x, heads.query * (1 if per_head else heads.dim))
    net.tape.module = "self_attn"
    gate = ops.to(softplus(ops.to(gate, "fp32")), out.dtype, "gate of the output")
    if per_head:
        out = out.view(batch, length, heads.query, heads.dim)
        out = ops.mul(out, gate.view(*gate.shape, 1), "gated output").view(batch, length, heads.query * heads.dim)
    else:
        out = ops.mul(out, gate, "gated output")
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def feed_forward(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """LagunaMLP, or LagunaSparseMoeBlock: a shared expert first."""
    act = c.text("hidden_act", "silu")
    if kind.dense:
        return gated(net, "mlp", x, c.count("intermediate_size"), act)
    experts = Experts(c.count("num_experts"), c.count("num_experts_per_tok"), c.count("moe_intermediate_size"), act)
    rows = flat(x)
    declare(net, "mlp.experts", x.shape[-1], experts)  # before the router
    shared = gated(net, "mlp.shared_experts", rows, c.count("shared_expert_intermediate_size"), act)
    logits, to = router(net, c, rows, experts)
    out = ops.scale(routed(net, "mlp.experts", rows, to, experts), "scaled output")
    out = ops.add(out, shared, "output").view(*x.shape)
    del logits
    return out


def router(net: Modules, c: Config, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """LagunaTopKRouter: logits in fp32, and a correction that never trains and helps to choose."""
    name = "mlp.gate"
    weight = router_weight(net, name, experts.number, x.shape[-1])
    correction = net.parameter(f"{name}.e_score_correction_bias", experts.number, frozen=True)
    net.tape.module = name
    logits = ops.to(ops.linear(x, weight, None, "router logits"), "fp32", "router logits in fp32")
    if c.number("moe_router_logit_softcapping", 0.0) > 0:
        logits = ops.scale(ops.tanh(ops.scale(logits)), "capped router logits")
    shares = ops.sigmoid(logits)
    choice = ops.add(shares, ops.to(correction, "fp32"), "corrected scores")
    values, which = ops.top(choice, experts.top, "scores of a token's experts")
    best = ops.gather(shares, which, which.shape)
    best = ops.divide(best, ops.total(best))
    del values, choice
    return logits, (ops.to(best, x.dtype, "shares of a token's experts"), which)


def kinds(c: Config) -> list[LayerKind]:
    """Which layers slide, which are no mixtures, and the query heads of each.

    Raises:
        SpecError: for lists of another length, or heads that keys do not divide.
    """
    layers, heads = c.count("num_hidden_layers"), heads_of(c)
    types = c.get("layer_types") or ["full_attention"] * layers
    feeds = c.get("mlp_layer_types") or ["dense", *["sparse"] * (layers - 1)]
    queries = c.get("num_attention_heads_per_layer") or [heads.query] * layers
    if not len(types) == len(feeds) == len(queries) == layers:
        raise SpecError(f"layer_types, mlp_layer_types, num_attention_heads_per_layer: expected {layers} of each")
    for count in queries:
        if not isinstance(count, int) or count < 1 or count % heads.key:
            raise SpecError(f"num_attention_heads_per_layer = {count!r}: no multiple of {heads.key} key heads")
    return [
        LayerKind(sliding=name == "sliding_attention", dense=feed == "dense", heads=count)
        for name, feed, count in zip(types, feeds, queries, strict=True)
    ]


def rotary(c: Config) -> Rotary:
    """Tables of their own for layers that slide, over another share of the head."""
    dim, parts = heads_of(c).dim, c.part("rope_parameters") if c.get("rope_parameters") else None

    def width(name: str, default: float) -> int:
        share = default if parts is None else 1.0
        if parts is not None and parts.get(name) is not None:
            share = parts.part(name).number("partial_rotary_factor", 1.0)
        return int(dim * share)

    return Rotary(width("sliding_attention", 1.0), per_kind=True, full_dim=width("full_attention", 0.5))


def mellum_kinds(c: Config) -> list[LayerKind]:
    """Which layers slide, and which are no mixtures."""
    layers = c.count("num_hidden_layers")
    types = c.get("layer_types") or ["full_attention"] * layers
    feeds = c.get("mlp_layer_types") or ["sparse"] * layers
    return [
        LayerKind(sliding=name == "sliding_attention", dense=feed == "dense")
        for name, feed in zip(types, feeds, strict=True)
    ]


ARCHITECTURES = {
    "laguna": Architecture(
        decoder=Decoder(laguna, rotary=rotary, window=window_or(512)),
        stacks=one_stack(kinds),
        refuses=(*ROUTED, ("moe_apply_router_weight_on_input", True)),
        defaults={"head_dim": 128},
    ),
    "mellum": Architecture(
        decoder=Decoder(qwen3_moe, rotary=lambda c: Rotary(heads_of(c).dim, per_kind=True), window=plain_window),
        stacks=one_stack(mellum_kinds),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"head_dim": 128, "norm_topk_prob": True, "sliding_window": 1024},
    ),
}
