"""Phi 1.5 and 2 (parallel branches), Phi 3 and 4 (fused projections), GLM 4 (partial rotary, fused feed-forward)."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary, layer_norm
from vramplan.analytic.architectures.llama import every_layer_slides, plain_window
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import fused_gated_mlp, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.inputs.model_spec import Config


def partial(default: float, per_row: bool = False) -> Callable[[Config], Rotary]:
    """Rotary over part of each head."""
    return lambda c: Rotary(int(heads_of(c).dim * c.number("partial_rotary_factor", default)), per_row=per_row)


def phi(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Phi 2: attention and feed-forward side by side behind one LayerNorm; biases everywhere."""
    heads = heads_of(c)
    batch, length, width = x.shape
    dropout = c.number("resid_pdrop", 0.0)
    residual = x
    x = net.layer_norm("input_layernorm", x)

    def projected(name: str, count: int) -> Tensor:
        out = net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias=True)
        out = out.view(batch, length, count, heads.dim)
        return out if name == "v" or ctx.liger_rope else ops.heads_first(out)

    q, k, v = projected("q", heads.query), projected("k", heads.key), projected("v", heads.key)
    del projected
    q, k, *pieces = partial_rotary(q, k, ctx, kind, keeps=True)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    out = net.linear("self_attn.dense", out, width, bias=True)
    del q, k, v, pieces
    out = ops.dropout_layer(out, dropout)
    fed = plain_mlp(net, x, "mlp.fc1", "mlp.fc2", c.count("intermediate_size"), c.text("hidden_act", "gelu_new"))
    fed = ops.dropout_layer(fed, dropout)
    return ops.add(ops.add(out, fed), residual, "residual stream")


def phi3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Phi 3 and 4: q, k, v in one projection (v keeps all of it alive), gate and up in another."""
    dropout = c.number("resid_pdrop", 0.0)
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = phi3_attention(net, c, x, ctx, kind)
    x = ops.add(residual, ops.dropout_layer(x, dropout), "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = fused_gated_mlp(net, c, x)
    return ops.add(residual, ops.dropout_layer(x, dropout), "residual stream")


def phi3_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Attention from one fused projection."""
    heads = heads_of(c)
    batch, length, width = x.shape
    q_width, k_width = heads.query * heads.dim, heads.key * heads.dim
    qkv = net.linear("self_attn.qkv_proj", x, q_width + 2 * k_width)
    q = ops.part(qkv, q_width).view(batch, length, heads.query, heads.dim)
    k = ops.part(qkv, k_width).view(batch, length, heads.key, heads.dim)
    v = ops.part(qkv, k_width).view(batch, length, heads.key, heads.dim)
    q, k = partial_rotary(q, k, ctx, kind, one_by_one=True)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=not ctx.liger_rope)
    return net.linear("self_attn.o_proj", out, width), *weights


def glm(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, sandwich: bool = False) -> Tensor:
    """GLM 4: Llama with partial interleaved rotary and a fused feed-forward; GLM-4-0414 norms each branch again."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = glm_attention(net, c, x, ctx, kind)
    if sandwich:
        x = net.rms_norm("post_self_attn_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = fused_gated_mlp(net, c, x)
    if sandwich:
        x = net.rms_norm("post_mlp_layernorm", x)
    return ops.add(residual, x, "residual stream")


def glm_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Separate projections, rotary on half of each head."""
    heads, bias = heads_of(c), c.flag("attention_bias", True)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    return net.linear("self_attn.o_proj", out, width), *weights


def glm4(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """GLM-4-0414."""
    return glm(net, c, x, ctx, kind, sandwich=True)


ARCHITECTURES = {
    "phi": Architecture(
        decoder=Decoder(phi, norm=layer_norm, norm_name="model.final_layernorm", head_bias=True, rotary=partial(0.5))
    ),
    "phi3": Architecture(
        decoder=Decoder(phi3, rotary=partial(1.0), window=plain_window), stacks=one_stack(every_layer_slides)
    ),
    "glm": Architecture(decoder=Decoder(glm, rotary=partial(0.5))),
    "glm4": Architecture(decoder=Decoder(glm4, rotary=partial(0.5))),
    "glm4v_text": Architecture(decoder=Decoder(glm4, rotary=partial(1.0, per_row=True))),
    "chatglm": Architecture(decoder=Decoder(glm, rotary=partial(0.5)), remote_code=True),
}
