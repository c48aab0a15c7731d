"""Llama 4 (text): every expert sees every token, most layers attend in chunks, the others have no positions.

Mirrors transformers 5.23, modeling_llama4.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.moe import flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mla import as_complex
from vramplan.analytic.layers.mlp import activation, gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads
from vramplan.errors import ConfigError, SpecError, setting
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward or experts, add."""
    residual = x
    attended, *weights = attention(net, c, net.rms_norm("input_layernorm", x), ctx, kind)
    x = ops.add(residual, attended, "residual stream")  # `attended` is a local to the end of the layer
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    act = c.text("hidden_act", "silu")
    if kind.dense:
        x = gated(net, "feed_forward", x, c.count("intermediate_size_mlp", 16384), act)
    else:
        x = experts(net, c, x, act).view(*residual.shape)
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Rotation in complex numbers and a norm without weight; without positions, a temperature for each of them."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    q_first, kv_first = heads_first_grads(q, heads.key, ctx, kind)
    q = ops.heads_first(q) if q_first else q
    k, v = (ops.heads_first(k), ops.heads_first(v)) if kv_first else (k, v)
    net.tape.module = "self_attn"
    if kind.rotary:
        q, k = as_complex(q, k, ctx, kind.sliding)
        if c.flag("use_qk_norm", True):
            q, k = unit(q), unit(k)
    elif c.flag("attn_temperature_tuning", True):
        numbers = net.tape.empty((1, length, 1, 1), "fp32", "temperatures of positions")
        q = ops.to(ops.mul(q, numbers, "scaled queries"), q.dtype, "scaled queries")
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def unit(x: Tensor) -> Tensor:
    """Llama4TextL2Norm: a norm without weight, in fp32."""
    dtype, wide = x.dtype, ops.to(x, "fp32", "fp32 copy")
    wide = ops.mul(wide, ops.rsqrt(ops.shift(ops.mean(ops.square(wide)))), "normalised")
    return ops.to(wide, dtype, "output")


def experts(net: Modules, c: Config, x: Tensor, act: str) -> Tensor:
    """Llama4TextMoe: all tokens, times their scores, through all experts; a shared expert besides."""
    number, inner, width = c.count("num_local_experts", 16), c.count("intermediate_size", 8192), x.shape[-1]
    rows = flat(x)
    tokens = rows.shape[0]
    into = net.parameter("feed_forward.experts.gate_up_proj", number, width, 2 * inner)
    back = net.parameter("feed_forward.experts.down_proj", number, inner, width)
    scores = router(net, rows, number, c.count("num_experts_per_tok", 1))
    net.tape.module = "feed_forward"
    routed = ops.repeat(rows, (number * tokens, width))
    by_expert = ops.copy(scores, "scores by expert").view(number * tokens, 1)
    routed = ops.mul(routed, by_expert, "weighted rows of all experts")
    net.tape.module = "feed_forward.experts"
    flops = 4 * number * tokens * width * inner
    both = ops.matmul(routed.view(number, tokens, width), into, flops, (number, tokens, 2 * inner), "gate and up")
    gate, up = ops.split(both, inner, inner)
    product = ops.mul(up, activation(act)(gate))
    out = ops.matmul(product, back, flops // 2, (number, tokens, width), "output of the experts")
    del both, gate, up, product
    shared = gated(net, "feed_forward.shared_expert", rows, inner, act)
    net.tape.module = "feed_forward"
    return ops.add_in_place(shared, ops.sum_groups(out.view(number * tokens, width), number))


def router(net: Modules, rows: Tensor, number: int, top: int) -> Tensor:
    """Llama4Router: the best logits of each token, through a sigmoid in fp32; 0 for the others.

    It is a linear layer that returns two tensors, on which PEFT's adapter fails.
    """
    name = "feed_forward.router"
    if net.is_target(name):
        raise ConfigError(
            "PEFT cannot adapt this model's router, which all-linear includes;"
            f" give {setting('lora_targets', 'q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj')}"
        )
    net.routers.add(name)
    weight = net.parameter(f"{name}.weight", number, rows.shape[-1])
    net.tape.module = name
    logits = ops.linear(rows, weight, None, "router logits")
    best, which = ops.top(logits, top, "best logits of a token")
    chosen = ops.scattered(best, which, logits.shape)
    return ops.to(ops.sigmoid(ops.to(chosen, "fp32", "logits in fp32")), logits.dtype, "scores")


def kinds(c: Config) -> list[LayerKind]:
    """Every fourth layer has no positions and is full; experts by interleave_moe_layer_step or moe_layers."""
    layers, every = c.count("num_hidden_layers", 48), c.count("no_rope_layer_interval", 4)
    rotates = c.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    types = c.get("layer_types") or ["chunked_attention" if has else "full_attention" for has in rotates]
    step = c.count("interleave_moe_layer_step", 1)
    mixtures = c.get("moe_layers", tuple(range(step - 1, layers, step)))
    if not all(isinstance(one, (list, tuple)) for one in (rotates, types, mixtures)) or not (
        len(rotates) >= layers <= len(types)
    ):
        raise SpecError(f"no_rope_layers, layer_types and moe_layers: expected lists for {layers} layers")
    return [
        LayerKind(types[layer] == "chunked_attention", rotary=bool(rotates[layer]), dense=layer not in mixtures)
        for layer in range(layers)
    ]


ARCHITECTURES = {
    "llama4_text": Architecture(
        decoder=Decoder(
            layer,
            rotary=lambda c: Rotary(heads_of(c).dim, is_complex=True),
            window=lambda c: c.count("attention_chunk_size", 8192),
            chunked=True,
        ),
        stacks=one_stack(kinds),
        attention=("sdpa", "eager"),  # _supports_flash_attn = False
        refuses=(("output_router_logits", True),),
    ),
}
