"""BART, mBART, Pegasus, Marian, M2M100 (NLLB): an encoder, a decoder that attends to it, norms behind or before sums.

Mirrors transformers 5.23, modeling_<type>.py.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.causal_lm import fills_cache
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

ENCODER, DECODER = 0, 1
"""Stacks of layers, in the order that they run."""
OFFSET = 2
"""Rows of the table of positions that are never picked (BartLearnedPositionalEmbedding)."""


def shape(c: Config) -> Shape:
    """BART's own key names; :mod:`vramplan.inputs.model_inputs` has the longest text."""
    return Shape(sum(layers(c)), c.count("d_model"), c.count("vocab_size"), None)


def layers(c: Config) -> tuple[int, int]:
    """Layers of the encoder and of the decoder."""
    return c.count("encoder_layers"), c.count("decoder_layers")


class Variant(NamedTuple):
    """How the relatives differ."""

    norms_first: bool = False
    """Whether norms come before attention and feed-forward, and behind the last layer, not behind each sum."""
    norms_embedding: bool = True
    positions: str = "learned"
    """A table that trains, that is "frozen", or that is "computed": a buffer, picked by tokens that are no padding."""
    shifts_logits: bool = True
    """Whether a bias, which never trains, is added to the logits."""


BART = Variant()
MBART = Variant(norms_first=True)
PEGASUS = Variant(norms_first=True, norms_embedding=False, positions="frozen")
MARIAN = Variant(norms_embedding=False, positions="frozen")
M2M100 = Variant(norms_first=True, norms_embedding=False, positions="computed", shifts_logits=False)


def write(forward: ForwardPass, c: Config, variant: Variant = BART) -> ModelOutput:
    """BartForConditionalGeneration: the head shares the embedding's weight; a bias of the logits never trains."""
    net, labels, vocabulary = forward.net, forward.inputs["labels"], c.count("vocab_size")
    net.tape.module = "inputs"
    shifted = net.tape.empty(labels.shape, "int64", "labels moved by one")
    encoded = encode(forward, c, variant)
    hidden = decode(forward, c, shifted, encoded, variant)
    logits = net.head(hidden, vocabulary, c.flag("tie_word_embeddings", True))
    if variant.shifts_logits:
        logits = ops.add(logits, net.resident((1, vocabulary), forward.job.dtype), "logits")
    net.tape.module = "loss"
    rows = logits.view(logits.num_elements // vocabulary, vocabulary)
    return ModelOutput(losses.cross_entropy(rows, labels), [logits, encoded])


def encode(forward: ForwardPass, c: Config, variant: Variant) -> Tensor:
    """BartEncoder; words and positions live to its end."""
    net, ids = forward.net, forward.inputs["input_ids"]
    words, positions, x = embed(net, c, "encoder", ids, ids.shape[0], variant)
    ctx = forward.context(forward.padding(words), c.number("attention_dropout", 0.0))
    out = forward.layers(ENCODER, x.pop(), lambda x: encoder_layer(net, c, x, ctx, variant))
    return net.layer_norm("encoder.layer_norm", out) if variant.norms_first else out


def decode(forward: ForwardPass, c: Config, ids: Tensor, encoded: Tensor, variant: Variant) -> Tensor:
    """BartDecoder; a mask of ones is made for it, which SDPA does without."""
    net, dropout = forward.net, c.number("attention_dropout", 0.0)
    words, positions, x = embed(net, c, "decoder", ids, 1, variant)
    mask = None
    if forward.job.attention == "eager":
        mask = attention_mask(net.tape, ids.shape[0], ids.shape[1], words.dtype, MaskParts(padded=True))
    ctx, cross = forward.context(mask, dropout), forward.context(forward.padding(encoded, ids.shape[1]), dropout)
    if variant.positions == "computed" and fills_cache(forward):  # M2M100 alone keeps use_cache beside labels
        ctx.cache = cross.cache = net.cache
    out = forward.layers(DECODER, x.pop(), lambda x: decoder_layer(net, c, x, ctx, cross, encoded, variant))
    return net.layer_norm("decoder.layer_norm", out) if variant.norms_first else out


def embed(
    net: Modules, c: Config, side: str, ids: Tensor, rows: int, variant: Variant
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Words, times a number that is mostly one, and positions; what they make together, alone in a list."""
    width = c.count("d_model")
    words = ops.scale(net.embedding("shared", ids, c.count("vocab_size"), width), "scaled words")
    positions = positions_of(net, c, side, ids, rows, variant)
    x = ops.add(words, positions)
    if variant.norms_embedding:
        x = net.layer_norm(f"{side}.layernorm_embedding", x)
    return words, positions, [ops.dropout(x, c.number("dropout", 0.1))]


def positions_of(net: Modules, c: Config, side: str, ids: Tensor, rows: int, variant: Variant) -> Tensor:
    """Embeddings of the positions, of each row or the same for all."""
    tape, width, length, most = net.tape, c.count("d_model"), ids.shape[1], c.count("max_position_embeddings", 1024)
    tape.module = name = f"{side}.embed_positions"
    if variant.positions == "computed":
        where = tape.empty(ids.shape, "int64", "positions")
        return tape.empty((*ids.shape, width), net.training.dtype, "positions of words")
    if variant.positions == "frozen":
        where = tape.empty((length,), "int64", "positions")
        weight = net.parameter(f"{name}.weight", most, width, frozen=True)
        return ops.embedding(where, weight).view(1, length, width)
    where = tape.empty((rows, length), "int64", "positions")
    return net.embedding(name, where, most + OFFSET, width)


def encoder_layer(net: Modules, c: Config, x: Tensor, ctx: Context, variant: Variant) -> Tensor:
    """Attention, add, norm; feed-forward, add, norm."""
    x = attended(net, c, x, ctx, "self_attn", c.count("encoder_attention_heads"), variant)
    return feed_forward(net, c, x, c.count("encoder_ffn_dim"), variant)


def decoder_layer(
    net: Modules, c: Config, x: Tensor, ctx: Context, cross: Context, encoded: Tensor, variant: Variant
) -> Tensor:
    """Attention, add, norm; attention to the encoder's output, add, norm; feed-forward, add, norm."""
    heads = c.count("decoder_attention_heads")
    x = attended(net, c, x, ctx, "self_attn", heads, variant)
    x = attended(net, c, x, cross, "encoder_attn", heads, variant, encoded)
    return feed_forward(net, c, x, c.count("decoder_ffn_dim"), variant)


def attended(
    net: Modules,
    c: Config,
    x: Tensor,
    ctx: Context,
    name: str,
    heads: int,
    variant: Variant,
    encoded: Tensor | None = None,
) -> Tensor:
    """Written out in the layer: attention, dropout, add, norm."""
    residual = x
    if variant.norms_first:
        x = net.layer_norm(f"{name}_layer_norm", x)
    x = attention(net, x, ctx, name, heads, encoded)
    x = ops.dropout(x, c.number("dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    return x if variant.norms_first else net.layer_norm(f"{name}_layer_norm", x)


def attention(net: Modules, x: Tensor, ctx: Context, name: str, heads: int, encoded: Tensor | None) -> Tensor:
    """BartAttention: every projection has a bias; scores stay in the model's dtype."""
    width, source = x.shape[-1], x if encoded is None else encoded

    def projected(part: str, given: Tensor) -> Tensor:
        return net.linear(f"{name}.{part}_proj", given, width, True).view(*given.shape[:2], heads, width // heads)

    q, k, v = projected("q", x), projected("k", source), projected("v", source)
    k, v = update_cache(k, v, ctx, LayerKind())
    out, *_ = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear(f"{name}.out_proj", out, width, True)


def feed_forward(net: Modules, c: Config, x: Tensor, wide: int, variant: Variant) -> Tensor:
    """Written out in the layer: feed-forward, add, norm."""
    residual, width = x, x.shape[-1]
    if variant.norms_first:
        x = net.layer_norm("final_layer_norm", x)
    x = activation(c.text("activation_function", "gelu"))(net.linear("fc1", x, wide, True))
    x = ops.dropout(x, c.number("activation_dropout", 0.0))
    x = net.linear("fc2", x, width, True)
    x = ops.dropout(x, c.number("dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    return x if variant.norms_first else net.layer_norm("final_layer_norm", x)


def logits_bias(c: Config) -> list[Input]:
    """A number for each word."""
    return [Input("final_logits_bias", (1, c.count("vocab_size")), "fp32")]


def computed_tables(c: Config) -> list[Input]:
    """M2M100's sines and cosines, for the encoder and for the decoder."""
    return [Input("weights", (c.count("max_position_embeddings", 1024) + OFFSET, c.count("d_model")), "")] * 2


def architecture(variant: Variant, *refuses: tuple[str, object], **defaults: object) -> Architecture:
    """The record of a relative; `defaults` are transformers' own values of its keys."""
    return Architecture(
        partial(write, variant=variant),
        stacks=lambda c: alike(*layers(c)),
        shape=shape,
        buffers=logits_bias if variant.shifts_logits else computed_tables,
        loads=LOADS,
        attention=("sdpa", "eager"),
        clamps_fp16=True,
        defaults=defaults,
        refuses=refuses,
        zero3_stops="how positions are made for weights that are divided already is not modelled"
        if variant.positions == "frozen"
        else "",
    )


LOADS = ("shared", "encoder.embed", ENCODER, "encoder", "decoder.embed", DECODER, "decoder")
ARCHITECTURES = {
    "bart": architecture(BART),
    "mbart": architecture(MBART),
    "pegasus": architecture(PEGASUS),
    "marian": architecture(MARIAN, ("share_encoder_decoder_embeddings", False)),
    "m2m_100": architecture(M2M100, activation_function="relu", attention_dropout=0.1),
}
