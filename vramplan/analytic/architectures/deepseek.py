"""DeepSeek's mixtures: latent attention, shared experts, dense first layers; GLM 4.5's experts are of the same kind.

(transformers 5.23, modeling_deepseek_v2.py, modeling_deepseek_v3.py, modeling_glm4_moe.py, modeling_glm4_moe_lite.py,
modeling_dots1.py, modeling_solar_open.py.)
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Layer, Rotary, rms_norm
from vramplan.analytic.architectures.llama import plain_window
from vramplan.analytic.architectures.moe import ROUTED, flat, layer
from vramplan.analytic.architectures.phi import partial
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import moe_linear_experts
from vramplan.analytic.layers.attention import attend, attention, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mla import Turn, as_complex, interleaved, latent_attention
from vramplan.analytic.layers.mlp import gated, gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Groups, Routed, declare, routed, scored_router, wide_router
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

Router = Callable[[Modules, Config, Tensor, Experts], Routed]
Loop = Callable[[Modules, str, Tensor, Routed, Experts], Tensor]
"""How experts take turns before transformers 5."""


def in_fp32(net: Modules, name: str, x: Tensor, to: Routed, experts: Experts) -> Tensor:
    """DeepseekV3MoE.moe: the experts' outputs are added up in fp32."""
    return ops.to(moe_linear_experts.in_turn(net, name, x, to, experts, widens=True)[0], x.dtype, "output")


def first_dense(default: int) -> Callable[[Config], list[LayerKind]]:
    """The first layers are no mixtures."""

    def kinds(c: Config) -> list[LayerKind]:
        dense = c.get("first_k_dense_replace", default)
        return [LayerKind(dense=layer < dense) for layer in range(c.count("num_hidden_layers"))]

    return kinds


def by_types(c: Config) -> list[LayerKind]:
    """Which layers are no mixtures, one by one; the first alone if the configuration does not say."""
    types = c.get("mlp_layer_types")
    if types is None:
        return [LayerKind(dense=not layer) for layer in range(c.count("num_hidden_layers"))]
    return [LayerKind(dense=name == "dense") for name in types]


def routed_experts(c: Config) -> int:
    """Experts that a router chooses from; K-EXAONE has a key of its own."""
    return c.count("n_routed_experts", c.get("num_experts"))


def shared_experts(c: Config) -> int:
    """Experts for all tokens."""
    return c.count("n_shared_experts", c.get("num_shared_experts"))


def shared_and_routed(
    net: Modules, c: Config, x: Tensor, kind: LayerKind, router: Router, loop: Loop = in_fp32
) -> Tensor:
    """DeepseekV3MoE: all tokens through the shared experts besides; a layer that is no mixture."""
    act, bias = c.text("hidden_act", "silu"), c.flag("mlp_bias", False)
    if kind.dense:
        return gated(net, "mlp", x, c.count("intermediate_size"), act, bias)
    width = c.count("moe_intermediate_size")
    experts = Experts(routed_experts(c), c.count("num_experts_per_tok"), width, act)
    rows = flat(x)
    if not net.training.linear_experts:
        declare(net, "mlp.experts", x.shape[-1], experts)  # before the router
    to = router(net, c, rows, experts)
    out = (loop if net.training.linear_experts else routed)(net, "mlp.experts", rows, to, experts).view(*x.shape)
    shared = gated(net, "mlp.shared_experts", x, width * shared_experts(c), act, bias)
    return ops.add(out, shared, "output")


# -- layers ------------------------------------------------------------------------------------------------------------


def latent(turn: Turn, router: Router, loop: Loop) -> Layer:
    """Latent attention in front of shared and routed experts."""
    return lambda net, c, x, ctx, kind: layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: latent_attention(net, c, x, ctx, turn),
        lambda net, c, x, kind: shared_and_routed(net, c, x, kind, router, loop),
    )


def youtu(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Youtu-LLM: DeepSeek's attention without experts."""
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: latent_attention(net, c, x, ctx, interleaved),
        lambda net, c, x, kind: gated_mlp(net, c, x, c.text("hidden_act", "silu"), c.flag("mlp_bias", False)),
    )


def v2_router(net: Modules, c: Config, x: Tensor, experts: Experts) -> Routed:
    """DeepseekV2TopkRouter."""
    limited = c.text("topk_method", "greedy") == "group_limited_greedy"
    groups = Groups(c.count("n_group"), c.count("topk_group")) if limited else None
    return wide_router(net, "mlp.gate", x, experts, groups)


def v3_router(net: Modules, c: Config, x: Tensor, experts: Experts) -> Routed:
    """DeepseekV3TopkRouter: a correction in the model's dtype helps to choose."""
    groups = Groups(c.count("n_group", 8), c.count("topk_group", 4))
    return scored_router(net, "mlp.gate", x, experts, groups, c.flag("norm_topk_prob", True), net.training.dtype)


def glm4_moe(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """GLM 4.5: grouped-query attention with rotary on part of each head."""
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        glm4_moe_attention,
        lambda net, c, x, kind: shared_and_routed(net, c, x, kind, glm4_router),
    )


def glm4_moe_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Glm4MoeAttention."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q, k, v = (
        net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    if c.flag("use_qk_norm", False):
        q, k = rms_norm(net, "self_attn.q_norm", q), rms_norm(net, "self_attn.k_norm", k)
    net.tape.module = "self_attn"
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    return net.linear("self_attn.o_proj", out, width), *weights


def glm4_router(net: Modules, c: Config, x: Tensor, experts: Experts) -> Routed:
    """Glm4MoeTopkRouter: the correction is fp32."""
    groups = Groups(c.count("n_group", 1), c.count("topk_group", 1))
    return scored_router(net, "mlp.gate", x, experts, groups, c.flag("norm_topk_prob", True), "fp32")


def dots1(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """dots.llm1: Qwen 3's attention."""
    bias = c.flag("attention_bias", False)
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: attention(net, c, x, ctx, kind, bias, bias, rms_norm),
        lambda net, c, x, kind: shared_and_routed(net, c, x, kind, v3_router),
    )


def dots1_kinds(c: Config) -> list[LayerKind]:
    """The first layers are no mixtures; those that `layer_types` names slide, or the ones from max_window_layers on."""
    types, window, last = c.get("layer_types"), plain_window(c), c.count("max_window_layers", 62)
    kinds = first_dense(0)(c)
    if types is None:
        return [kind._replace(sliding=window is not None and layer >= last) for layer, kind in enumerate(kinds)]
    return [kind._replace(sliding=name == "sliding_attention") for kind, name in zip(kinds, types, strict=True)]


def solar_open(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Solar Open: Llama's attention, every layer a mixture."""
    bias = c.flag("attention_bias", False)
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: attention(net, c, x, ctx, kind, bias),
        lambda net, c, x, kind: shared_and_routed(net, c, x, kind, glm4_router),
    )


def corrections(kinds: Callable[[Config], list[LayerKind]]) -> Callable[[Config], list[Input]]:
    """Buffers that help to choose: a number for each expert of each mixture, kept in fp32."""

    def buffers(c: Config) -> list[Input]:
        mixtures = sum(not kind.dense for kind in kinds(c))
        return [Input("e_score_correction_bias", (routed_experts(c),), "fp32")] * mixtures

    return buffers


ARCHITECTURES = {
    "deepseek_v2": Architecture(  # rotation in complex numbers, a softmax over experts
        decoder=Decoder(
            latent(as_complex, v2_router, moe_linear_experts.in_order),
            rotary=lambda c: Rotary(c.count("qk_rope_head_dim") // 2, fp32=True, pairs=False),
        ),
        stacks=one_stack(first_dense(0)),
        attention=("sdpa", "eager"),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
    ),
    "deepseek_v3": Architecture(  # R1, Kimi K2, Moonlight: a sigmoid for each expert, the best of the best groups
        decoder=Decoder(latent(interleaved, v3_router, in_fp32), rotary=lambda c: Rotary(c.count("qk_rope_head_dim"))),
        stacks=one_stack(first_dense(3)),
        buffers=corrections(first_dense(3)),
        attention=("sdpa", "eager"),
        refuses=(*ROUTED, ("rope_interleave", False)),
        peft_experts="qwen2_moe",
    ),
    "youtu": Architecture(
        decoder=Decoder(youtu, rotary=lambda c: Rotary(c.count("qk_rope_head_dim"))),
        tied=True,
        refuses=(("rope_interleave", False),),
    ),
    "glm4_moe_lite": Architecture(  # GLM 4.7 Flash: DeepSeek's attention, with heads as wide for values as for keys
        decoder=Decoder(
            latent(interleaved, glm4_router, in_fp32), rotary=lambda c: Rotary(c.count("qk_rope_head_dim"))
        ),
        stacks=one_stack(by_types),
        buffers=corrections(by_types),
        refuses=(*ROUTED, ("rope_interleave", False)),
        peft_experts="qwen2_moe",
    ),
    "glm4_moe": Architecture(
        decoder=Decoder(glm4_moe, rotary=partial(0.5)),
        stacks=one_stack(first_dense(1)),
        buffers=corrections(first_dense(1)),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
    ),
    "dots1": Architecture(
        decoder=Decoder(dots1, window=plain_window),
        stacks=one_stack(dots1_kinds),
        buffers=corrections(dots1_kinds),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
    ),
    "solar_open": Architecture(
        decoder=Decoder(solar_open),
        buffers=corrections(first_dense(0)),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"head_dim": 128},
    ),
    "glm4v_moe_text": Architecture(
        decoder=Decoder(glm4_moe, rotary=partial(0.5, per_row=True)),
        stacks=one_stack(first_dense(1)),
        buffers=corrections(first_dense(1)),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
    ),
}
