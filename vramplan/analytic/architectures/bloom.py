"""BLOOM (ALiBi, eager attention) and Falcon (parallel branches, one key head or grouped ones)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, one_stack
from vramplan.analytic.architectures.decoder import Decoder, full_rotary, layer_norm
from vramplan.analytic.architectures.gpt import by_layer_count
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers.attention import attend, merged, update_cache
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary
from vramplan.inputs.model_spec import Config

# -- BLOOM -------------------------------------------------------------------------------------------------------------


def bloom_shape(c: Config) -> Shape:
    """BLOOM's older key names; ALiBi has no limit of positions."""
    return Shape(
        c.count("n_layer", c.get("num_hidden_layers")),
        c.count("hidden_size", c.get("n_embed")),
        c.count("vocab_size"),
        c.get("seq_length"),
    )


def bloom_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embedding with a norm of its own."""
    shape = bloom_shape(c)
    x = net.embedding("transformer.word_embeddings", ids, shape.vocabulary, shape.hidden)
    net.embedding_locals = [x]
    return net.layer_norm("transformer.word_embeddings_layernorm", x)


def bloom(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Eager attention with ALiBi; q, k and v are cut out of the fused projection."""
    dropout = c.number("hidden_dropout", 0.0)
    normed = net.layer_norm("input_layernorm", x)
    attended, weights = bloom_attention(net, c, x, normed, ctx, dropout)
    normed = net.layer_norm("post_attention_layernorm", attended)
    return bloom_mlp(net, normed, attended, dropout), weights


def bloom_mlp(net: Modules, x: Tensor, residual: Tensor, dropout: float) -> Tensor:
    """BloomMLP."""
    width = residual.shape[-1]
    x = bloom_gelu(net.linear("mlp.dense_h_to_4h", x, 4 * width, bias=True))
    out = net.linear("mlp.dense_4h_to_h", x, width, bias=True)
    return ops.add(residual, ops.dropout(out, dropout), "residual stream")


def bloom_attention(
    net: Modules, c: Config, residual: Tensor, x: Tensor, ctx: Context, dropout: float
) -> tuple[Tensor, ...]:
    """``alibi.baddbmm(q, k)``: scaling and bias are part of the product. All scores are locals to the end."""
    batch, length, width = x.shape
    heads = c.count("n_head", c.get("num_attention_heads"))
    dim = width // heads
    qkv = net.linear("self_attention.query_key_value", x, 3 * width, bias=True)
    qkv = qkv.view(batch, length, heads, 3 * dim)
    if ctx.cache is None:
        q, k, v = (merged(ops.part(qkv, dim), False) for _ in range(3))
    else:
        q, k, v = (ops.part(qkv, dim) for _ in range(3))
        k, v = update_cache(k, v, ctx, LayerKind())
        q = merged(q, False)
    keys = k.shape[1]
    flops, shape = 2 * batch * heads * length * keys * dim, (batch, heads, length, keys)
    scores = ops.matmul(q, k, flops, shape, "attention scores", scaled=True)
    mask = ctx.masks.get(False)
    biased = scores if mask is None else ops.add(scores, mask, "masked attention scores")
    weights = ops.to(kernels.softmax_fp32(biased), q.dtype, "attention probabilities")
    weights = ops.dropout_layer(weights, c.number("attention_dropout", 0.0))
    out = ops.matmul(weights, v, flops, (batch, length, heads, dim), "attention output")
    if batch > 1:
        out = ops.heads_first(out)  # the gradient comes with positions first
    out = ops.copy(out).view(batch, length, width)
    projected = net.linear("self_attention.dense", out, width, bias=True)
    projected = ops.add(residual, ops.dropout(projected, dropout), "residual stream")
    return projected, weights


# -- Falcon ------------------------------------------------------------------------------------------------------------


def falcon(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Falcon: parallel branches behind one norm (7b) or two (40b, 180b)."""
    new, width = c.flag("new_decoder_architecture", False), x.shape[-1]
    bias = c.flag("bias", False)
    residual = x
    if new and c.count("num_ln_in_parallel_attn", 2) == 2:
        for_attention, for_mlp = net.layer_norm("ln_attn", x), net.layer_norm("ln_mlp", x)
    else:
        for_attention = for_mlp = net.layer_norm("input_layernorm", x)
    attended, *weights = falcon_attention(net, c, for_attention, ctx, kind, new, bias)
    inner = c.count("ffn_hidden_size", 4 * width)
    names, act = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), c.text("activation", "gelu")
    x = plain_mlp(net, for_mlp, *names, inner, act, bias, cached=False)
    x = ops.add_in_place(x, attended)
    return ops.add(residual, x, "residual stream"), *weights


def falcon_attention(
    net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, new: bool, bias: bool
) -> tuple[Tensor, ...]:
    """One key/value head (7b), or groups whose k and v are copied out to all query heads (40b)."""
    heads = c.count("num_attention_heads")
    batch, length, width = x.shape
    dim = width // heads
    key_heads = c.count("num_kv_heads", heads) if new else 1
    fused = net.linear("self_attention.query_key_value", x, (heads + 2 * key_heads) * dim, bias, cached=False)
    q = ops.part(fused, heads * dim).view(batch, length, heads, dim)
    k, v = (ops.pick(fused, key_heads * dim).view(batch, length, key_heads, dim) for _ in range(2))
    if new:
        k, v = (
            ops.repeat_heads(k, heads // key_heads, copies=True),
            ops.repeat_heads(v, heads // key_heads, copies=True),
        )
        q = ops.copy(q, "query copied out of the fused projection")
    q, k = rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    mask, keys = ctx.masks.get(False), k.shape[1]
    weights: list[Tensor] = []
    if ctx.attention == "eager":
        flops, shape = 2 * batch * heads * length * keys * dim, (batch, heads, length, keys)
        scores = ops.matmul(merged(q, False), broadcast(k, heads), flops, shape, "attention scores")
        scores = ops.scale_in_place(scores)
        assert mask is not None
        masked = ops.add(scores, mask, "masked attention scores")
        scores = kernels.softmax_fp32(masked) if x.dtype == "fp32" else kernels.softmax_as_it_is(masked)
        del masked
        out = ops.matmul(scores, broadcast(v, heads), flops, (batch, length, heads, dim), "attention output")
        out = ops.copy(out).view(batch, length, width)
        weights = [scores]
    elif not new:
        out = kernels.math_attention(q, k, v, mask, broadcasts=True).view(batch, length, width)
    else:
        (out,) = attend(q, k, v, ctx, kind)
    return net.linear("self_attention.dense", out, width, bias, cached=False), *weights


def broadcast(x: Tensor, heads: int) -> Tensor:
    """`x` as the product itself takes it: cast under autocast, then expanded to all heads."""
    x = ops.low(x)
    return merged(x if x.shape[2] == heads else ops.repeat_heads(x, heads), False)


def falcon_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``transformer.word_embeddings``."""
    return net.embedding("transformer.word_embeddings", ids, c.count("vocab_size"), c.count("hidden_size"))


def bloom_gelu(x: Tensor) -> Tensor:
    """BLOOM's own GELU, an autograd function of Python ops that keeps its input alone (modeling_bloom.py)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        def new() -> Tensor:
            return ops.new_like(tape, like, "temporary of the GELU's backward")

        inner, scaled = new(), new()
        squared = new()
        del scaled
        shifted = new()
        del squared
        product = new()
        del inner, shifted
        bent = new()  # tanh, a local to the end
        del product
        half, square = new(), new()
        complement = new()
        del square
        scaled = new()
        squared = new()
        del scaled
        shifted = new()
        del squared
        product = new()
        del complement, shifted
        first = new()
        del half, product
        shifted = new()
        second = new()
        del shifted
        slope = new()
        del first, second
        return [ops.new_like(tape, like, "gradient through GELU")]

    node = tape.node((x,), backward)
    tape.save(node, x)

    def new() -> Tensor:
        return ops.new_like(tape, like, "temporary of the GELU")

    half, inner, scaled = new(), new(), new()  # x * 0.5, 0.79788456 * x, 0.044715 * x
    squared = new()
    del scaled
    shifted = new()
    del squared
    product = new()
    del inner, shifted
    bent = new()
    del product
    factor = new()
    del bent
    return ops.output(node, tape, x.shape, x.dtype, "gelu output")


ARCHITECTURES = {
    "bloom": Architecture(
        decoder=Decoder(
            bloom,
            embed=bloom_embed,
            norm=layer_norm,
            norm_name="transformer.ln_f",
            rotary=lambda c: None,
            positions_in_mask=False,
        ),
        tied=True,
        shape=bloom_shape,
        stacks=one_stack(by_layer_count),
        attention=("eager",),
    ),
    "falcon": Architecture(
        decoder=Decoder(
            falcon,
            embed=falcon_embed,
            norm=layer_norm,
            norm_name="transformer.ln_f",
            rotary=full_rotary,
            always_masked=True,
            positions_in_mask=False,
        ),
        tied=True,
        attention=("sdpa", "eager"),
        refuses=(("alibi", True), ("parallel_attn", False)),
    ),
}
