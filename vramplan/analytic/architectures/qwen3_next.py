"""Qwen3-Next and Qwen3.5: three layers of gated delta net, then one of gated attention (transformers 5.23)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.moe import ROUTED, FeedForward, qwen2_experts, sparse_every
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.gated_delta import DeltaHeads, Project, Projected, gated_delta_net
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, partial_rotary
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """RMS norm times ``1 + weight`` in fp32."""
    return net.rms_norm(name, x, offset=True)


def layer(
    net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, project: Project, feeds: FeedForward
) -> Tensor:
    """Norm, gated delta net or attention, add; norm, feed-forward, add."""
    residual = x
    x = norm(net, "input_layernorm", x)
    if kind.recurrent:
        x = gated_delta_net(net, c, x, ctx, project)
    else:
        x, *weights = gated_attention(net, c, x, ctx, kind)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "post_attention_layernorm", x)
    x = feeds(net, c, x, kind)
    return ops.add(residual, x, "residual stream")


def qwen3_next(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Qwen3-Next: experts in every layer."""
    return layer(net, c, x, ctx, kind, joint_projections, qwen2_experts)


def qwen3_5(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Qwen3.5: one feed-forward."""
    return layer(net, c, x, ctx, kind, projections, lambda net, c, x, kind: gated_mlp(net, c, x, act_of(c)))


def qwen3_5_moe(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Qwen3.5's mixtures: experts in every layer."""
    return layer(net, c, x, ctx, kind, projections, qwen2_experts)


def act_of(c: Config) -> str:
    """The activation function."""
    return c.text("hidden_act", "silu")


def gated_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Qwen3NextAttention: the projection of q also makes a gate for the output."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    doubled = net.linear("self_attn.q_proj", x, 2 * heads.query * heads.dim, bias)
    q, gate = ops.split(doubled.view(batch, length, heads.query, 2 * heads.dim), heads.dim, heads.dim)
    del doubled
    gate = ops.copy(gate, "gate of the output").view(batch, length, heads.query * heads.dim)
    q = norm(net, "self_attn.q_norm", q)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    k = norm(net, "self_attn.k_norm", ops.heads_first(k))
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if heads_first_grads(q, heads.key, ctx, kind)[1]:
        v = ops.heads_first(v)
    net.tape.module = "self_attn"
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    out = ops.mul(out, ops.sigmoid(gate), "gated output")
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def joint_projections(net: Modules, c: Config, x: Tensor, heads: DeltaHeads) -> Projected:
    """Qwen3-Next: queries, keys, values and the gate in one projection, sorted by key head."""
    batch, length, _ = x.shape
    groups = heads.values // heads.keys
    joint = net.linear("linear_attn.in_proj_qkvz", x, heads.width + heads.value_width)
    rates = net.linear("linear_attn.in_proj_ba", x, 2 * heads.values)
    net.tape.module = "linear_attn"
    wide = groups * heads.value_dim
    query, key, value, gate = ops.split(
        joint.view(batch, length, heads.keys, 2 * heads.key_dim + 2 * wide), heads.key_dim, heads.key_dim, wide, wide
    )
    beta, decay = ops.split(rates.view(batch, length, heads.keys, 2 * groups), groups, groups)
    if groups > 1:
        value, gate, beta, decay = (ops.copy(part, "heads in order") for part in (value, gate, beta, decay))
    gate = gate.view(batch, length, heads.values, heads.value_dim)
    beta, decay = (part.view(batch, length, heads.values) for part in (beta, decay))
    query, key = (ops.copy(part, "heads in order") for part in (query, key))
    value = value if groups > 1 else ops.copy(value, "heads in order")
    mixed = joined(query, key, value, heads)
    return Projected(mixed, gate, beta, decay, (query, key, value), (rates, joint))


def projections(net: Modules, c: Config, x: Tensor, heads: DeltaHeads) -> Projected:
    """Qwen3.5: a projection each for queries, keys and values together, the gate, beta and the decay."""
    batch, length, _ = x.shape
    mixed = net.linear("linear_attn.in_proj_qkv", x, heads.width)
    gate = net.linear("linear_attn.in_proj_z", x, heads.value_width)
    gate = gate.view(batch, length, heads.values, heads.value_dim)
    beta = net.linear("linear_attn.in_proj_b", x, heads.values)
    return Projected(mixed, gate, beta, net.linear("linear_attn.in_proj_a", x, heads.values))


def joined(query: Tensor, key: Tensor, value: Tensor, heads: DeltaHeads) -> Tensor:
    """``torch.cat((query, key, value), dim=-1)``."""
    batch, length = query.shape[:2]
    parts = [part.view(batch, length, part.num_elements // (batch * length)) for part in (query, key, value)]
    return ops.join_rows(parts, (batch, length, heads.width))


def kinds(c: Config) -> list[LayerKind]:
    """Every fourth layer attends; layer_types in the configuration wins."""
    every, types = c.count("full_attention_interval", 4), c.get("layer_types")
    attends = [
        (layer + 1) % every == 0 if types is None else types[layer] == "full_attention"
        for layer in range(c.count("num_hidden_layers"))
    ]
    return [
        LayerKind(dense=not sparse, recurrent=not full) for full, sparse in zip(attends, sparse_every(c), strict=True)
    ]


def rotary(c: Config) -> Rotary:
    """Rotary over a quarter of each head."""
    return Rotary(int(heads_of(c).dim * partial_factor(c, 0.25)))


def rotary_per_row(c: Config) -> Rotary:
    """The same, with positions for each sample, because of images in the text."""
    return rotary(c)._replace(per_row=True)


def partial_factor(c: Config, default: float) -> float:
    """The share of each head that rotates, by its own key or among the rotary parameters."""
    nested = c.part("rope_parameters").number("partial_rotary_factor", default) if c.get("rope_parameters") else default
    return c.number("partial_rotary_factor", nested)


PACKAGES = "flash-linear-attention and causal-conv1d"
ARCHITECTURES = {
    "qwen3_next": Architecture(
        decoder=Decoder(qwen3_next, norm=norm, rotary=rotary),
        stacks=one_stack(kinds),
        mixer_packages=PACKAGES,
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"norm_topk_prob": True, "head_dim": 256},
    ),
    "qwen3_5_text": Architecture(
        decoder=Decoder(qwen3_5, norm=norm, rotary=rotary_per_row),
        stacks=one_stack(kinds),
        mixer_packages=PACKAGES,
        defaults={"head_dim": 256},
    ),
    "qwen3_5_moe_text": Architecture(
        decoder=Decoder(qwen3_5_moe, norm=norm, rotary=rotary_per_row),
        stacks=one_stack(kinds),
        mixer_packages=PACKAGES,
        refuses=ROUTED,
        defaults={"norm_topk_prob": True, "head_dim": 256},  # the first always: there is no key
    ),
}
