"""Llama and its relatives: pre-norm, rotary, gated feed-forward (transformers 5.23, modeling_<type>.py)."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary, embed_tokens, rms_norm, times
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, attention, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mla import latent_attention
from vramplan.analytic.layers.mlp import gated_mlp, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary
from vramplan.inputs.model_spec import Config


def pre_norm_layer(
    net: Modules,
    c: Config,
    x: Tensor,
    ctx: Context,
    kind: LayerKind,
    bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    dropout: float = 0.0,
    scales_residual: bool = False,
    scales_queries: bool = False,
) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, out_bias, rms_norm if qk_norm else None, scales_queries)
    x = ops.dropout(x, dropout)
    attended = x if net.of_torchtune else None
    x = ops.add(residual, ops.scale(x) if scales_residual else x, "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = ops.dropout(gated_mlp(net, c, x, c.text("hidden_act", "silu"), mlp_bias), dropout)
    x = ops.add(residual, ops.scale(x) if scales_residual else x, "residual stream")
    del attended
    return x


def llama(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Llama, SmolLM, Yi, InternLM 3 ...: biases by key."""
    bias = c.flag("attention_bias", c.flag("qkv_bias", False))
    return pre_norm_layer(net, c, x, ctx, kind, bias, bias, c.flag("mlp_bias", False))


def mistral(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Mistral: no biases."""
    return pre_norm_layer(net, c, x, ctx, kind)


def qwen2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Qwen 1.5, 2 and 2.5: biases on q, k and v."""
    return pre_norm_layer(net, c, x, ctx, kind, bias=True)


def qwen3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Qwen 3: a norm on every head of q and k."""
    bias = c.flag("attention_bias", False)
    return pre_norm_layer(net, c, x, ctx, kind, bias, bias, qk_norm=True)


def ministral3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Ministral 3: queries are scaled by their positions."""
    return pre_norm_layer(net, c, x, ctx, kind, scales_queries=True)


def arcee(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Arcee: a feed-forward without a gate."""
    bias, mlp_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    width, act = c.count("intermediate_size", 18432), c.text("hidden_act", "relu2")
    x = plain_mlp(net, x, "mlp.up_proj", "mlp.down_proj", width, act, mlp_bias)
    return ops.add(residual, x, "residual stream")


def cwm(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Code World Model: Llama without biases of attention."""
    return pre_norm_layer(net, c, x, ctx, kind, mlp_bias=c.flag("mlp_bias", False))


def seed_oss(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Seed-OSS: biases on q, k and v, dropout on both residual branches."""
    return pre_norm_layer(
        net,
        c,
        x,
        ctx,
        kind,
        c.flag("attention_bias", True),
        c.flag("attention_out_bias", False),
        c.flag("mlp_bias", False),
        dropout=c.number("residual_dropout", 0.1),
    )


def granite(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Granite: every residual branch is scaled."""
    bias = c.flag("attention_bias", False)
    return pre_norm_layer(net, c, x, ctx, kind, bias, bias, c.flag("mlp_bias", False), scales_residual=True)


def hyperclovax(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """HyperCLOVA X: Granite with a norm behind each branch, before it is scaled."""
    bias, norms = c.flag("attention_bias", False), c.flag("use_post_norm", True)
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = net.rms_norm("post_norm1", x) if norms else x
    x = ops.add(residual, ops.scale(x), "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"), c.flag("mlp_bias", False))
    x = net.rms_norm("post_norm2", x) if norms else x
    return ops.add(residual, ops.scale(x), "residual stream")


def granite_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embedding times a number."""
    return ops.scale(embed_tokens(net, c, ids), "scaled embedding")


def minicpm(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """MiniCPM: Llama with scaled residual branches."""
    return pre_norm_layer(net, c, x, ctx, kind, scales_residual=True)


def minicpm3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """MiniCPM 3: MiniCPM with latent attention."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = latent_attention(net, c, x, ctx, lambda q, k, ctx: rotary(q, k, ctx, kind))
    x = ops.add(residual, ops.scale(x), "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"))
    return ops.add(residual, ops.scale(x), "residual stream")


def olmo_norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """OLMo 2's RMS norm multiplies by its weight in fp32."""
    return net.rms_norm(name, x, cast_last=True)


def olmo2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """OLMo 2 and 3: no norm before, one after each branch; norms over all of q and of k; rotary in fp32."""
    residual = x
    x, *weights = olmo_attention(net, c, x, ctx, kind)
    x = olmo_norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"))
    x = olmo_norm(net, "post_feedforward_layernorm", x)
    return ops.add(residual, x, "residual stream")


def olmo_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Attention with q and k normed before they are split into heads."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q = olmo_norm(net, "self_attn.q_norm", net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias))
    k = olmo_norm(net, "self_attn.k_norm", net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias))
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias)
    q = q.view(batch, length, heads.query, heads.dim)
    k, v = (t.view(batch, length, heads.key, heads.dim) for t in (k, v))
    net.tape.module = "self_attn"
    dtype = q.dtype
    q, k = (ops.to(t, dtype, "rotated") for t in rotary(q, k, ctx, kind))
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


# -- which layers slide, and how far -----------------------------------------------------------------------------------


def every_layer_slides(c: Config) -> list[LayerKind]:
    """Mistral, Phi-3, StarCoder2: all layers slide if a window is set."""
    return [LayerKind(sliding=plain_window(c) is not None)] * c.count("num_hidden_layers")


def plain_window(c: Config) -> int | None:
    """The configuration's window, None if it is null or absent."""
    return None if c.get("sliding_window") is None else c.count("sliding_window")


def mistral_window(c: Config) -> int | None:
    """Mistral's window; transformers takes 4096 if the key is absent, None if it is null."""
    return plain_window(c) if c.has("sliding_window") else 4096


def mistral_kinds(c: Config) -> list[LayerKind]:
    """All layers slide, or none."""
    return [LayerKind(sliding=mistral_window(c) is not None)] * c.count("num_hidden_layers")


def ministral_kinds(c: Config) -> list[LayerKind]:
    """The layers that `layer_types` names slide; without it, all that Mistral's do."""
    types = c.get("layer_types")
    return mistral_kinds(c) if types is None else [LayerKind(sliding=name == "sliding_attention") for name in types]


def qwen_window(c: Config) -> int | None:
    """Qwen's window counts only if use_sliding_window is true."""
    return plain_window(c) if c.flag("use_sliding_window", False) else None


def qwen_kinds(c: Config) -> list[LayerKind]:
    """The layers from max_window_layers (28) on slide."""
    first, slides = c.count("max_window_layers", 28), qwen_window(c) is not None
    return [LayerKind(sliding=slides and layer >= first) for layer in range(c.count("num_hidden_layers"))]


def patterned(c: Config, period: int) -> list[LayerKind]:
    """Every `period`-th layer is full, the others slide; layer_types in the configuration wins."""
    layers = c.count("num_hidden_layers")
    types = c.get("layer_types")
    if types is not None:
        return [LayerKind(sliding=name == "sliding_attention") for name in types]
    period = c.count("sliding_window_pattern", period)
    return [LayerKind(sliding=(layer + 1) % period != 0) for layer in range(layers)]


def cwm_kinds(c: Config) -> list[LayerKind]:
    """The first of every four layers is full, the others slide."""
    if c.get("layer_types") is not None:
        return patterned(c, 4)
    return [LayerKind(sliding=layer % 4 != 0) for layer in range(c.count("num_hidden_layers"))]


def smollm3_kinds(c: Config) -> list[LayerKind]:
    """Every fourth layer has no positions."""
    every = c.count("no_rope_layer_interval", 4)
    layers = c.get("no_rope_layers")
    if layers is not None:
        return [LayerKind(rotary=bool(has)) for has in layers]
    return [LayerKind(rotary=(layer + 1) % every != 0) for layer in range(c.count("num_hidden_layers"))]


def window_or(default: int) -> Callable[[Config], int]:
    """The configuration's sliding window, or the architecture's default."""
    return lambda c: c.count("sliding_window", default)


ARCHITECTURES = {
    "llama": Architecture(decoder=Decoder(llama)),
    "internlm3": Architecture(decoder=Decoder(llama)),
    "internlm2": Architecture(decoder=Decoder(llama), remote_code=True),
    "baichuan": Architecture(decoder=Decoder(llama), remote_code=True),
    "minicpm": Architecture(decoder=Decoder(minicpm, embed=granite_embed, before_head=times), remote_code=True),
    "minicpm3": Architecture(
        decoder=Decoder(
            minicpm3, embed=granite_embed, before_head=times, rotary=lambda c: Rotary(c.count("qk_rope_head_dim"))
        ),
        tied=True,
    ),
    "mistral": Architecture(decoder=Decoder(mistral, window=mistral_window), stacks=one_stack(mistral_kinds)),
    "ministral": Architecture(decoder=Decoder(mistral, window=mistral_window), stacks=one_stack(ministral_kinds)),
    "ministral3": Architecture(decoder=Decoder(ministral3, window=plain_window), stacks=one_stack(every_layer_slides)),
    "arcee": Architecture(decoder=Decoder(arcee)),
    "cwm": Architecture(decoder=Decoder(cwm, window=window_or(8192)), stacks=one_stack(cwm_kinds)),
    "qwen2": Architecture(decoder=Decoder(qwen2, window=qwen_window), stacks=one_stack(qwen_kinds)),
    "qwen2_vl_text": Architecture(
        decoder=Decoder(qwen2, window=qwen_window, rotary=lambda c: Rotary(heads_of(c).dim, per_row=True)),
        stacks=one_stack(qwen_kinds),
    ),
    "qwen3": Architecture(decoder=Decoder(qwen3, window=qwen_window), stacks=one_stack(qwen_kinds)),
    "qwen3_vl_text": Architecture(
        decoder=Decoder(qwen3, window=qwen_window, rotary=lambda c: Rotary(heads_of(c).dim, per_row=True)),
        stacks=one_stack(qwen_kinds),
    ),
    "seed_oss": Architecture(decoder=Decoder(seed_oss, attention_dropout=("attention_dropout", 0.1))),
    "granite": Architecture(decoder=Decoder(granite, embed=granite_embed, after_head=times)),
    "hyperclovax": Architecture(decoder=Decoder(hyperclovax, embed=granite_embed, after_head=times)),
    "smollm3": Architecture(decoder=Decoder(llama), stacks=one_stack(smollm3_kinds)),
    "olmo2": Architecture(decoder=Decoder(olmo2, norm=olmo_norm, rotary=lambda c: Rotary(heads_of(c).dim, fp32=True))),
    "olmo3": Architecture(
        decoder=Decoder(
            olmo2,
            norm=olmo_norm,
            rotary=lambda c: Rotary(heads_of(c).dim, fp32=True, per_kind=True),
            window=window_or(4096),
        ),
        stacks=one_stack(lambda c: patterned(c, 4)),
    ),
}
