"""gpt-oss: attention with sinks, written out; experts with biases (transformers 5.23, modeling_gpt_oss.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.llama import olmo_norm, patterned, window_or
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers.attention import update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed
from vramplan.inputs.model_spec import Config


def gpt_oss(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """GptOssDecoderLayer; norms multiply by their weight in fp32."""
    residual = x
    x = olmo_norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = olmo_norm(net, "post_attention_layernorm", x)
    experts = Experts(
        c.count("num_local_experts", 128),
        c.count("num_experts_per_tok", 4),
        c.count("intermediate_size"),
        biased=True,
        transposed=True,
    )
    rows = flat(x)
    to = router(net, rows, experts)
    out = routed(net, "mlp.experts", rows, to, experts, clamped_gate).view(*x.shape)
    return ops.add(residual, out, "residual stream")


def router(net: Modules, x: Tensor, experts: Experts) -> Routed:
    """GptOssTopKRouter: a softmax over the best logits alone, in their dtype."""
    name = "mlp.router"
    net.routers.add(name)
    net.tape.module = name
    weight, bias = (
        net.parameter(f"{name}.weight", experts.number, x.shape[-1]),
        net.parameter(f"{name}.bias", experts.number),
    )
    logits = ops.linear(x, weight, bias, "router logits")
    best, which = ops.top(logits, experts.top, "logits of a token's experts")
    return kernels.softmax_as_it_is(best), which


def clamped_gate(both: Tensor, experts: Experts) -> Tensor:
    """GptOssExperts._apply_gate: gate and up alternate; both are clamped."""
    gate, up = ops.part(both, experts.width), ops.part(both, experts.width)
    gate, up = ops.clamp(gate, bounds=1), ops.clamp(up)
    glu = ops.mul(gate, ops.sigmoid(ops.scale(gate)), "gate * sigmoid")
    return ops.mul(ops.shift(up), glu)


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Eager attention; a learned logit of each head takes part in the softmax and is dropped."""
    heads, bias = heads_of(c), c.flag("attention_bias", True)
    batch, length, width = x.shape
    q, k, v = (
        ops.heads_first(
            net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        )
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    net.tape.module = "self_attn"
    q, k = (turned(x, ctx, kind) for x in (q, k))
    k, v = update_cache(k, v, ctx, kind)
    sinks = net.parameter("self_attn.sinks", heads.query)
    out, weights = with_sinks(q, k, v, sinks, ctx, kind)
    return net.linear("self_attn.o_proj", out.view(batch, length, heads.query * heads.dim), width, bias), weights


def turned(x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """_apply_rotary_emb: both halves by tables of half a head."""
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    first, second = ops.split(x, cos.shape[-1], cos.shape[-1])
    one = ops.subtract(ops.mul(first, cos, "x * cos"), ops.mul(second, sin, "x * sin"), "rotated half")
    other = ops.add(ops.mul(second, cos, "x * cos"), ops.mul(first, sin, "x * sin"), "rotated half")
    return ops.cat(one, other)


def with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: the largest score of each row is subtracted before the softmax."""
    batch, length, heads, dim = q.shape
    groups, mask = heads // k.shape[2], ctx.masks.get(kind.sliding)
    k, v = ops.repeat_heads(k, groups), ops.repeat_heads(v, groups)
    keys = k.shape[1]
    shape, flops = (batch, heads, length, keys), 2 * batch * heads * length * keys * dim
    scores = ops.matmul(q, k, flops, shape, "attention scores")
    scores = ops.scale(scores, "scaled attention scores")
    if mask is not None:
        scores = ops.add(scores, mask, "masked attention scores")
    joined = beside(scores, sinks)
    joined = ops.subtract(joined, ops.top(joined, 1, "largest scores")[0], "scores below the largest")
    shares = kernels.softmax_as_it_is(joined)
    weights = ops.dropout(ops.sliced(shares, shape), ctx.attention_dropout)
    del scores
    out = ops.matmul(weights, v, flops, (batch, length, heads, dim), "attention output")
    out = ops.copy(out)
    del joined
    return out, weights


def beside(scores: Tensor, sinks: Tensor) -> Tensor:
    """``torch.cat([scores, sinks], dim=-1)``, the sinks expanded; the gradients are views, theirs summed."""
    tape, likes = scores.tape, [one.like if one.node is not None else None for one in (scores, sinks)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        if likes[0] is not None:
            grads[0] = grad.view(*likes[0].shape)
        if likes[1] is not None:
            grads[1] = ops.new_like(tape, likes[1], "gradient of the sinks")
        return grads

    node = tape.node((scores, sinks), backward)
    out = ops.output(node, tape, (*scores.shape[:-1], scores.shape[-1] + 1), scores.dtype, "scores and sinks")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


ARCHITECTURES = {
    "gpt_oss": Architecture(
        decoder=Decoder(
            gpt_oss, norm=olmo_norm, rotary=lambda c: Rotary(heads_of(c).dim // 2, pairs=False), window=window_or(128)
        ),
        stacks=one_stack(lambda c: patterned(c, 2)),
        attention=("eager",),
        refuses=ROUTED,
    ),
}
