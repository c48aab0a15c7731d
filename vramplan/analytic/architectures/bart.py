"""BART: an encoder, a decoder that attends to it, norms behind each sum (transformers 5.23, modeling_bart.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
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


def write(forward: ForwardPass, c: Config) -> ModelOutput:
    """BartForConditionalGeneration: the head shares the embedding's weight; a bias of the logits never trains."""
    net, labels, vocabulary = forward.net, forward.inputs["labels"], c.count("vocab_size")
    net.tape.module = "inputs"
    shifted = net.tape.empty(labels.shape, "int64", "labels moved by one")
    encoded = encode(forward, c)
    hidden = decode(forward, c, shifted, encoded)
    logits = net.head(hidden, vocabulary, c.flag("tie_word_embeddings", True))
    logits = ops.add(logits, net.resident((1, vocabulary), forward.job.dtype), "logits")
    net.tape.module = "loss"
    rows = logits.view(logits.num_elements // vocabulary, vocabulary)
    return ModelOutput(losses.cross_entropy(rows, labels), [logits, encoded])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """BartEncoder; words and positions live to its end."""
    net, ids = forward.net, forward.inputs["input_ids"]
    words, positions, x = embed(net, c, "encoder", ids, ids.shape[0])
    ctx = forward.context(forward.padding(words), c.number("attention_dropout", 0.0))
    return forward.layers(ENCODER, x.pop(), lambda x: encoder_layer(net, c, x, ctx))


def decode(forward: ForwardPass, c: Config, ids: Tensor, encoded: Tensor) -> Tensor:
    """BartDecoder; a mask of ones is made for it, which SDPA does without."""
    net, dropout = forward.net, c.number("attention_dropout", 0.0)
    words, positions, x = embed(net, c, "decoder", ids, 1)
    mask = None
    if forward.job.attention == "eager":
        mask = attention_mask(net.tape, ids.shape[0], ids.shape[1], words.dtype, MaskParts(padded=True))
    ctx, cross = forward.context(mask, dropout), forward.context(forward.padding(encoded, ids.shape[1]), dropout)
    return forward.layers(DECODER, x.pop(), lambda x: decoder_layer(net, c, x, ctx, cross, encoded))


def embed(net: Modules, c: Config, side: str, ids: Tensor, rows: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Words, times a number that is mostly one, and positions; what they make together, alone in a list."""
    width, length = c.count("d_model"), ids.shape[1]
    words = ops.scale(net.embedding("shared", ids, c.count("vocab_size"), width), "scaled words")
    net.tape.module = f"{side}.embed_positions"
    where = net.tape.empty((rows, length), "int64", "positions")
    most = c.count("max_position_embeddings", 1024) + OFFSET
    positions = net.embedding(f"{side}.embed_positions", where, most, width)
    x = net.layer_norm(f"{side}.layernorm_embedding", ops.add(words, positions))
    return words, positions, [ops.dropout(x, c.number("dropout", 0.1))]


def encoder_layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Attention, add, norm; feed-forward, add, norm."""
    x = attended(net, c, x, ctx, "self_attn", c.count("encoder_attention_heads"))
    return feed_forward(net, c, x, c.count("encoder_ffn_dim"))


def decoder_layer(net: Modules, c: Config, x: Tensor, ctx: Context, cross: Context, encoded: Tensor) -> Tensor:
    """Attention, add, norm; attention to the encoder's output, add, norm; feed-forward, add, norm."""
    heads = c.count("decoder_attention_heads")
    x = attended(net, c, x, ctx, "self_attn", heads)
    x = attended(net, c, x, cross, "encoder_attn", heads, encoded)
    return feed_forward(net, c, x, c.count("decoder_ffn_dim"))


def attended(
    net: Modules, c: Config, x: Tensor, ctx: Context, name: str, heads: int, encoded: Tensor | None = None
) -> Tensor:
    """Written out in the layer: attention, dropout, add, norm."""
    residual = x
    x = attention(net, x, ctx, name, heads, encoded)
    x = ops.dropout(x, c.number("dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    return net.layer_norm(f"{name}_layer_norm", x)


def attention(net: Modules, x: Tensor, ctx: Context, name: str, heads: int, encoded: Tensor | None) -> Tensor:
    """BartAttention: every projection has a bias; scores stay in the model's dtype."""
    width, source = x.shape[-1], x if encoded is None else encoded

    def projected(part: str, given: Tensor) -> Tensor:
        return net.linear(f"{name}.{part}_proj", given, width, True).view(*given.shape[:2], heads, width // heads)

    q, k, v = projected("q", x), projected("k", source), projected("v", source)
    out, *_ = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear(f"{name}.out_proj", out, width, True)


def feed_forward(net: Modules, c: Config, x: Tensor, wide: int) -> Tensor:
    """Written out in the layer: feed-forward, add, norm."""
    residual, width = x, x.shape[-1]
    x = activation(c.text("activation_function", "gelu"))(net.linear("fc1", x, wide, True))
    x = ops.dropout(x, c.number("activation_dropout", 0.0))
    x = net.linear("fc2", x, width, True)
    x = ops.dropout(x, c.number("dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    return net.layer_norm("final_layer_norm", x)


LOADS = ("shared", "encoder.embed", ENCODER, "encoder", "decoder.embed", DECODER, "decoder")
ARCHITECTURES = {
    "bart": Architecture(
        write,
        stacks=lambda c: alike(*layers(c)),
        shape=shape,
        buffers=lambda c: [Input("final_logits_bias", (1, c.count("vocab_size")), "fp32")],
        loads=LOADS,
        attention=("sdpa", "eager"),
        clamps_fp16=True,
        refuses=(("encoder_layerdrop", ...), ("decoder_layerdrop", ...)),
    )
}
