"""ViT trained to classify images (transformers 5.23, modeling_vit.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.towers.vit import patches, with_class
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import grid, interpolates
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import num_labels


def shape(c: Config) -> Shape:
    """No words, no table of them."""
    return Shape(c.count("num_hidden_layers"), c.count("hidden_size"), 0, None)


def classify(forward: ForwardPass, c: Config) -> ModelOutput:
    """ViTForImageClassification: the class token's last state, one layer, a cross-entropy."""
    hidden = encode(forward, c)
    chosen = ops.rows(hidden, 1).view(hidden.shape[0], hidden.shape[2])
    logits = forward.net.linear("classifier", chosen, num_labels(c, forward.job), True)
    forward.tape.module = "loss"
    return ModelOutput(losses.cross_entropy(logits, forward.inputs["labels"]), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """ViTModel without a pooler; the pixels in the model's dtype and the first layer's input live to its end."""
    net = forward.net
    net.tape.module = "embeddings"
    pixels = ops.to(forward.inputs["pixel_values"], net.training.dtype, "pixels in the model's dtype")
    embedded = embed(forward, c, pixels)
    ctx = forward.context(None, c.number("attention_probs_dropout_prob", 0.0))
    x = forward.layers(0, embedded, lambda x: layer(net, c, x, ctx))
    return net.layer_norm("layernorm", x)


def embed(forward: ForwardPass, c: Config, pixels: Tensor) -> Tensor:
    """Patches, the class token before them, a learned position for each."""
    net, cells = forward.net, grid(c, forward.job)
    x = patches(net, "embeddings.patch_embeddings.projection", pixels, c, cells, True, c.count("patch_size"))
    x = given_a_gradient(x, net.training.input_needs_grad)
    net.tape.module = "embeddings"
    width, side = x.shape[2], c.count("image_size", 224) // c.count("patch_size")
    x = with_class(net, "embeddings.cls_token", x, width, 1, 1, width)
    table: Tensor = net.parameter("embeddings.position_embeddings", 1, side * side + 1, width)
    if interpolates(c, forward.job):
        table = interpolated(table, side, cells)
    return ops.dropout(ops.add(x, table), c.number("hidden_dropout_prob", 0.0))


def interpolated(table: Tensor, side: int, cells: tuple[int, int]) -> Tensor:
    """``interpolate_pos_encoding``: the positions of a square for another grid, that of the class before them."""
    width = table.shape[-1]
    first, rest = ops.rows(table, 1), ops.rows(table, side * side)
    rest = ops.resize(rest, (1, cells[0] * cells[1], width))
    return ops.join(first, rest, (1, cells[0] * cells[1] + 1, width))


def layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    dropout, residual = c.number("hidden_dropout_prob", 0.0), x
    x = net.layer_norm("layernorm_before", x)
    x, *weights = attention(net, c, x, ctx)
    x = ops.dropout(x, dropout)
    x = ops.add(x, residual, "residual stream")
    residual = x
    x = net.layer_norm("layernorm_after", x)
    x = feed_forward(net, c, x)
    x = ops.dropout(x, dropout)
    return ops.add(x, residual, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """ViTAttention: every patch to every patch."""
    batch, length, width = x.shape
    heads, bias = c.count("num_attention_heads"), c.flag("qkv_bias", True)
    q, k, v = (
        net.linear(f"attention.{name}_proj", x, width, bias).view(batch, length, heads, width // heads)
        for name in "qkv"
    )
    out, *weights = attend(q, k, v, ctx)
    return net.linear("attention.o_proj", out, width, True), *weights


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """ViTMLP: each result takes the name of its input."""
    width = x.shape[-1]
    x = net.linear("mlp.fc1", x, c.count("intermediate_size"), True)
    x = activation(c.text("hidden_act", "gelu"))(x)
    return net.linear("mlp.fc2", x, width, True)


ARCHITECTURES = {"vit": Architecture(classify, stacks=lambda c: alike(c.count("num_hidden_layers")), shape=shape)}
