"""T5, mT5 and UMT5: an encoder, a decoder that attends to it, positions as a learned bias.

Mirrors transformers 5.23, modeling_t5.py, modeling_mt5.py, modeling_umt5.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor, leaf
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.biased_attention import attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config

ENCODER, DECODER = 0, 1
"""Stacks of layers, in the order that they run."""


def shape(c: Config) -> Shape:
    """T5's own key names; positions are relative, so that any length runs."""
    return Shape(c.count("num_layers") + decoder_layers(c), c.count("d_model"), c.count("vocab_size"), None)


def decoder_layers(c: Config) -> int:
    """As many as the encoder's by default."""
    return c.count("num_decoder_layers", c.count("num_layers"))


def write(forward: ForwardPass, c: Config, scales: bool = True, shares: bool = True) -> ModelOutput:
    """T5ForConditionalGeneration: the head is always the embedding's weight; before 1.1 its input is scaled.

    `scales`: false for mT5, which never does. `shares`: whether a stack has one bias; false for UMT5.
    """
    net, labels = forward.net, forward.inputs["labels"]
    encoded = stack(forward, c, ENCODER, forward.inputs["input_ids"], shares)
    net.tape.module = "inputs"
    shifted = net.tape.empty(labels.shape, "int64", "labels moved by one")
    hidden = x = stack(forward, c, DECODER, shifted, shares, encoded)
    if scales and c.flag("tie_word_embeddings", True):
        x = ops.scale(hidden)
    logits = net.head(x, c.count("vocab_size"), tied=True)
    net.tape.module = "loss"
    rows = logits.view(logits.num_elements // logits.shape[-1], logits.shape[-1])
    return ModelOutput(losses.cross_entropy(rows, labels), [logits, encoded])


def stack(
    forward: ForwardPass, c: Config, number: int, ids: Tensor, shares: bool, encoded: Tensor | None = None
) -> Tensor:
    """T5Stack; the bias that its first layer makes goes from layer to layer, the embeddings live to its end."""
    net, dropout = forward.net, c.number("dropout_rate", 0.1)
    embedded = net.embedding("shared", ids, c.count("vocab_size"), c.count("d_model"))
    if encoded is None:
        ctx, cross = forward.context(forward.padding(embedded), dropout), None
    else:
        ctx = forward.context(forward.causal(embedded, padded=False), dropout)
        cross = forward.context(forward.padding(encoded, embedded.shape[1]), dropout)
        if not (net.tape.training and forward.job.checkpointing == "full"):
            ctx.cache = cross.cache = net.cache  # the Trainer switches use_cache off in the outer configuration alone

    def one(x: Tensor, *biases: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not shares:
            return lone_layer(forward, c, x, ctx, cross, encoded)
        return layer(forward, c, x, ctx, cross, encoded, biases)

    biases: list[Tensor] = []
    x = forward.layers(number, ops.dropout(embedded, dropout), one, others=biases)
    name = "encoder" if encoded is None else "decoder"
    return ops.dropout(norm(net, f"{name}.final_layer_norm", x), dropout)


def layer(
    forward: ForwardPass,
    c: Config,
    x: Tensor,
    ctx: Context,
    cross: Context | None,
    encoded: Tensor | None,
    biases: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """T5Block; `biases` of the layer before, `cross` and `encoded` in the decoder alone."""
    x, first, *probs = attention(forward, c, x, ctx, "layer.0", Bias(biases[0] if biases else None, cross is not None))
    if cross is None:
        return feed_forward(forward.net, c, x, "layer.1"), first
    x, second, *probs = attention(forward, c, x, cross, "layer.1", Bias(biases[1] if biases else None), encoded)
    return feed_forward(forward.net, c, x, "layer.2"), first, second


def lone_layer(
    forward: ForwardPass, c: Config, x: Tensor, ctx: Context, cross: Context | None, encoded: Tensor | None
) -> Tensor:
    """UMT5Block, which makes its own biases."""
    x, *probs = attention(forward, c, x, ctx, "layer.0", Bias(None, cross is not None, goes_on=False))
    if cross is None:
        return feed_forward(forward.net, c, x, "layer.1")
    x, *probs = attention(forward, c, x, cross, "layer.1", Bias(None, goes_on=False), encoded)
    return feed_forward(forward.net, c, x, "layer.2")


class Bias(NamedTuple):
    """The bias of one kind of attention, which is added to its scores."""

    known: Tensor | None
    """That of the layer before; None in the first, which makes it."""
    causal: bool = False
    goes_on: bool = True
    """Whether the next layer takes it."""


def attention(
    forward: ForwardPass, c: Config, x: Tensor, ctx: Context, name: str, bias: Bias, encoded: Tensor | None = None
) -> tuple[Tensor, ...]:
    """T5LayerSelfAttention, T5LayerCrossAttention: norm, attention, dropout, add; the bias; eager's probabilities."""
    normed = norm(forward.net, f"{name}.layer_norm", x)
    out, *others = attend_with_bias(forward, c, normed, ctx, name, bias, encoded)
    total = ops.add(x, ops.dropout(out, c.number("dropout_rate", 0.1)), "residual stream")
    if encoded is None:
        out = total  # one variable in T5LayerSelfAttention, two in T5LayerCrossAttention
    return total, *others


def attend_with_bias(
    forward: ForwardPass, c: Config, x: Tensor, ctx: Context, name: str, bias: Bias, encoded: Tensor | None
) -> tuple[Tensor, ...]:
    """T5Attention: the first layer makes the bias that all share, zeros if the decoder attends to the encoder."""
    net, heads, dim = forward.net, c.count("num_heads"), c.count("d_kv")
    module = f"{name}.{'SelfAttention' if encoded is None else 'EncDecAttention'}"
    source = x if encoded is None else encoded
    q = net.linear(f"{module}.q", x, heads * dim).view(*x.shape[:2], heads, dim)
    k = net.linear(f"{module}.k", source, heads * dim).view(*source.shape[:2], heads, dim)
    v = net.linear(f"{module}.v", source, heads * dim).view(*source.shape[:2], heads, dim)
    net.tape.module = module
    if ctx.cache is not None:
        cached = [ops.copy(k, "cached keys"), ops.copy(v, "cached values")]
        ctx.cache += cached
        k, v = cached
        del cached
    added, shape = bias.known, (1, heads, x.shape[1], source.shape[1])
    if added is None and encoded is None:
        added = relative_bias(net, c, module, shape, bias.causal)
    elif added is None:
        added = net.tape.empty(shape, q.dtype, "zeros for a bias")
        if bias.goes_on and forward.job.checkpointing == "full" and net.tape.training and net.tape.grad_enabled:
            added = leaf(added)
    out, *weights = attend(q, k, v, added, ctx, bias.causal, transposed=encoded is None)
    out = net.linear(f"{module}.o", out, x.shape[-1])
    return (out, added, *weights) if bias.goes_on else (out, *weights)


def feed_forward(net: Modules, c: Config, x: Tensor, name: str) -> Tensor:
    """T5LayerFF: norm, feed-forward, dropout, add."""
    inner = norm(net, f"{name}.layer_norm", x)
    inner = dense(net, c, inner, f"{name}.DenseReluDense")
    return ops.add(x, ops.dropout(inner, c.number("dropout_rate", 0.1)), "residual stream")


def dense(net: Modules, c: Config, x: Tensor, name: str) -> Tensor:
    """T5DenseActDense, T5DenseGatedActDense; the last layer's input is first cast to its weight's dtype."""
    gate, _, act = c.text("feed_forward_proj", "relu").rpartition("-")
    fn, wide, width = activation("gelu_new" if (gate, act) == ("gated", "gelu") else act), c.count("d_ff"), x.shape[-1]
    if gate:
        bent = fn(net.linear(f"{name}.wi_0", x, wide))
        straight = net.linear(f"{name}.wi_1", x, wide)
        x = ops.mul(bent, straight)
    else:
        x = net.linear(f"{name}.wi", x, wide)
        x = fn(x)
    x = ops.dropout(x, c.number("dropout_rate", 0.1))
    x = ops.to(x, net.training.dtype, "input in the weight's dtype")
    return net.linear(f"{name}.wo", x, width)


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """T5LayerNorm: an RMS norm that multiplies the given dtype by fp32, then casts to a half weight's dtype."""
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", x.shape[-1])
    variance = ops.mean(ops.square(ops.to(x, "fp32")))
    x = ops.mul(x, ops.rsqrt(ops.shift(variance)), "normalised")
    if weight.dtype != "fp32":
        x = ops.to(x, weight.dtype, "normalised")
    return ops.mul(weight, x, "output")


def relative_bias(net: Modules, c: Config, module: str, shape: tuple[int, ...], one_way: bool) -> Tensor:
    """compute_bias: a bucket for each distance, a number of each head for each bucket; a view as (1, heads, Q, K)."""
    tape, (_, heads, *square) = net.tape, shape
    name = f"{module}.relative_attention_bias"
    distances = tape.empty((square[0], square[1]), "int64", "distances")
    buckets = bucketed(distances, one_way)
    tape.module = name
    weight = net.parameter(f"{name}.weight", c.count("relative_attention_num_buckets", 32), heads)
    made = ops.embedding(buckets, weight, "bias by distance", sorts=True, permuted=True)
    del distances
    return made.view(*shape)


def bucketed(distances: Tensor, one_way: bool) -> Tensor:
    """_relative_position_bucket, operation by operation: near distances have a bucket each, far ones share them."""
    tape, square = distances.tape, distances.shape

    def made(dtype: str, what: str) -> Tensor:
        return tape.empty(square, dtype, what)

    buckets = None
    if not one_way:
        later = made("bool", "whether behind")
        later = made("int64", "whether behind, as numbers")
        later = made("int64", "first half of the buckets")
        buckets = made("int64", "buckets")
        del later
    else:
        least = made("int64", "zeros")
        least = made("int64", "distances back")
    lengths = made("int64", "lengths")
    least = made("bool", "which are near")
    far = made("fp32", "lengths in fp32")
    for what in ("share of the near ones", "logarithm", "share of the far ones", "steps"):
        far = made("fp32", what)
    far = made("int64", "whole steps")
    far = made("int64", "far buckets")
    most = made("int64", "last bucket")
    far = made("int64", "far buckets")
    del most
    chosen = made("int64", "near or far bucket")
    if one_way:
        buckets = made("int64", "buckets")
    del chosen, lengths, least, far
    assert buckets is not None
    return buckets


LOADS = ("shared", ENCODER, "encoder", DECODER, "decoder")
T5 = Architecture(
    write,
    stacks=lambda c: alike(c.count("num_layers"), decoder_layers(c)),
    shape=shape,
    loads=LOADS,
    attention=("sdpa", "eager"),
    clamps_fp16=True,
)
ARCHITECTURES = {
    "t5": T5,
    "mt5": replace(
        T5, forward=partial(write, scales=False), defaults={"feed_forward_proj": "gated-gelu", "vocab_size": 250112}
    ),
    "umt5": replace(
        T5, forward=partial(write, shares=False), defaults={"feed_forward_proj": "gated-gelu", "vocab_size": 250112}
    ),
}
