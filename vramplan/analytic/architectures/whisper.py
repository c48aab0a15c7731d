"""Whisper: an encoder of sound, a decoder that writes (transformers 5.23, modeling_whisper.py)."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, eager_attention, flash_package, sdpa
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config

ENCODER, DECODER = 0, 1
"""Stacks of layers, in the order that they run."""
KERNEL = 3
"""Frames of each convolution's kernel."""


def shape(c: Config) -> Shape:
    """Whisper's own key names."""
    layers = c.count("encoder_layers") + c.count("decoder_layers")
    return Shape(layers, c.count("d_model"), c.count("vocab_size"), None)


def write(forward: ForwardPass, c: Config) -> ModelOutput:
    """WhisperForConditionalGeneration: sound in, text out; the head shares the decoder's embedding."""
    net, labels = forward.net, forward.inputs["labels"]
    net.tape.module = "inputs"
    shifted = net.tape.empty(labels.shape, "int64", "labels moved by one")
    encoded = encode(forward, c)
    hidden = decode(forward, c, shifted, encoded)
    logits = net.head(hidden, c.count("vocab_size"), c.flag("tie_word_embeddings", True))
    net.tape.module = "loss"
    rows = logits.view(logits.num_elements // logits.shape[-1], logits.shape[-1])
    return ModelOutput(losses.cross_entropy(rows, labels), [logits, encoded])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """WhisperEncoder: two convolutions, the second of which halves the frames, fixed positions, layers, a norm.

    The convolutions' output lives to its end.
    """
    net, width, positions = forward.net, c.count("d_model"), c.count("max_source_positions", 1500)
    features = forward.inputs["input_features"]
    samples, bins, frames = features.shape
    encoded = ops.gelu(convolution(forward, "encoder.conv1", features, bins, width, frames, hooked=True))
    encoded = ops.gelu(convolution(forward, "encoder.conv2", encoded, width, width, positions))
    encoded = encoded.view(samples, positions, width)
    net.tape.module = "encoder.embed_positions"
    where = net.tape.empty((positions,), "int64", "positions")
    table = net.parameter("encoder.embed_positions.weight", positions, width, frozen=True)
    ctx = forward.context(None, c.number("attention_dropout", 0.0))
    x = ops.add(encoded, ops.embedding(where, table).view(1, positions, width))
    held = [ops.dropout(x, c.number("dropout", 0.0))]
    del x
    x = forward.layers(ENCODER, held.pop(), lambda x: encoder_layer(net, c, x, ctx))
    return net.layer_norm("encoder.layer_norm", x)


def convolution(
    forward: ForwardPass, name: str, x: Tensor, channels: int, width: int, frames: int, hooked: bool = False
) -> Tensor:
    """``nn.Conv1d`` over three frames: (B, width, frames); transformers' hook is on the first one's output."""
    net = forward.net
    net.tape.module = name
    weight, bias = net.parameter(f"{name}.weight", width, channels, KERNEL), net.parameter(f"{name}.bias", width)
    out = ops.patches(x, weight, bias, (x.shape[0], width, frames), transposed=name.endswith("conv2"))
    return given_a_gradient(out, hooked and net.training.input_needs_grad)


def decode(forward: ForwardPass, c: Config, ids: Tensor, encoded: Tensor) -> Tensor:
    """WhisperDecoder: words and positions, which live to its end, layers, a norm."""
    net, width, dropout = forward.net, c.count("d_model"), c.number("attention_dropout", 0.0)
    words = net.embedding("decoder.embed_tokens", ids, c.count("vocab_size"), width)
    net.tape.module = "decoder.embed_positions"
    where = net.tape.empty(ids.shape, "int64", "positions of each sample")
    table = net.parameter("decoder.embed_positions.weight", c.count("max_target_positions", 448), width)
    positions = ops.gathered(table, words.shape, "positions")
    held = [ops.dropout(ops.add(words, positions), c.number("dropout", 0.0))]
    ctx, cross = forward.context(forward.causal(words, padded=False), dropout), forward.context(None, dropout)
    x = forward.layers(DECODER, held.pop(), lambda x: decoder_layer(net, c, x, ctx, cross, encoded))
    x = net.layer_norm("decoder.layer_norm", x)
    del where
    return x


def encoder_layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.layer_norm("self_attn_layer_norm", x)
    x, *weights = attention(net, x, ctx, "self_attn", c.count("encoder_attention_heads"))
    x = ops.dropout(x, c.number("dropout", 0.0))
    x = ops.add(residual, x, "residual stream")
    x = feed_forward(net, c, x, c.count("encoder_ffn_dim"))
    return ops.clamp(x) if x.dtype == "fp16" else x


def decoder_layer(net: Modules, c: Config, x: Tensor, ctx: Context, cross: Context, encoded: Tensor) -> Tensor:
    """Norm, attention, add; norm, attention to the encoded sound, add; norm, feed-forward, add."""
    heads, dropout = c.count("decoder_attention_heads"), c.number("dropout", 0.0)
    residual = x
    x = net.layer_norm("self_attn_layer_norm", x)
    x, *weights = attention(net, x, ctx, "self_attn", heads)
    x = ops.dropout(x, dropout)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("encoder_attn_layer_norm", x)
    x, *weights = attention(net, x, cross, "encoder_attn", heads, encoded)
    x = ops.dropout(x, dropout)
    x = ops.add(residual, x, "residual stream")
    return feed_forward(net, c, x, c.count("decoder_ffn_dim"))


def feed_forward(net: Modules, c: Config, x: Tensor, wide: int) -> Tensor:
    """Written out in the layer: norm, feed-forward, add."""
    residual, width = x, x.shape[-1]
    x = net.layer_norm("final_layer_norm", x)
    x = activation(c.text("activation_function", "gelu"))(net.linear("fc1", x, wide, True))
    x = ops.dropout(x, c.number("activation_dropout", 0.0))
    x = net.linear("fc2", x, width, True)
    x = ops.dropout(x, c.number("dropout", 0.0))
    return ops.add(residual, x, "residual stream")


def attention(
    net: Modules, x: Tensor, ctx: Context, name: str, heads: int, encoded: Tensor | None = None
) -> tuple[Tensor, ...]:
    """WhisperAttention: the query scaled by hand, all three laid out head by head; keys without a bias."""
    width, source = x.shape[-1], x if encoded is None else encoded
    q = ops.scale(net.linear(f"{name}.q_proj", x, width, True), "scaled query")
    q = laid_out(q, heads)
    k = laid_out(net.linear(f"{name}.k_proj", source, width), heads)
    v = laid_out(net.linear(f"{name}.v_proj", source, width, True), heads)
    net.tape.module = name
    out, *weights = attend(q, k, v, ctx)
    return net.linear(f"{name}.out_proj", out.view(*x.shape), width, True), *weights


def laid_out(x: Tensor, heads: int) -> Tensor:
    """``x.view(...).transpose(1, 2).contiguous()``."""
    batch, length, width = x.shape
    return ops.copy(ops.heads_first(x.view(batch, length, heads, width // heads)), "heads apart")


def attend(q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """The attention interface for q, k and v that lie head by head."""
    mask = ctx.masks.get(False)
    if ctx.attention == "eager":
        options = Softcap(in_fp32=False, casts=False)
        return eager_attention(q, k, v, mask, ctx.attention_dropout, True, options, cached=True)
    if ctx.attention == "flash":
        return (flash_package(q, k, v, replace(ctx, padded=False)),)
    return (sdpa(q, k, v, mask, ctx, contiguous=True),)


LOADS = (
    "encoder.conv",
    "encoder.embed",
    ENCODER,
    "encoder",
    "decoder.embed",
    DECODER,
    "decoder",
)
ARCHITECTURES = {
    "whisper": Architecture(
        write,
        stacks=lambda c: alike(c.count("encoder_layers"), c.count("decoder_layers")),
        shape=shape,
        loads=LOADS,
        refuses=(("apply_spec_augment", True),),
        zero3_stops="transformers 5.23 stops where it makes positions for weights that are divided already"
        " (_init_weights)",
    )
}
