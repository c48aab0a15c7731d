"""DINOv2, with and without registers, trained to classify images (transformers 5.23, modeling_dinov2.py).

Registers are tokens of their own between the class token and the patches (modeling_dinov2_with_registers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.towers.vit import patches, with_class
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.architectures.vit import shape
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.biased_attention import for_all
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import gated, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import grid
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import num_labels
from vramplan.units import ceil_div


def registers(c: Config) -> int:
    """Tokens between the class token and the patches."""
    return int(c.number("num_register_tokens", 0))


def classify(forward: ForwardPass, c: Config) -> ModelOutput:
    """Dinov2ForImageClassification: the class token's state beside the mean of the patches', one layer."""
    hidden = encode(forward, c)
    samples, count, width = hidden.shape
    chosen = ops.rows(hidden, 1).view(samples, width)
    mean = ops.mean(ops.rows(hidden, count - 1 - registers(c)), 1)
    features = ops.cat(chosen, mean)
    logits = forward.net.linear("classifier", features, num_labels(c, forward.job), True, head=True)
    forward.tape.module = "loss"
    return ModelOutput(losses.cross_entropy(logits, forward.inputs["labels"]), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """Dinov2Model: the first layer's input lives to its end."""
    net = forward.net
    embedded = embed(forward, c, forward.inputs["pixel_values"])
    ctx = forward.context(None, c.number("attention_probs_dropout_prob", 0.0))
    x = forward.layers(0, embedded, lambda x: layer(net, c, x, ctx, attention, feed_forward))
    return net.layer_norm("layernorm", x)


def embed(forward: ForwardPass, c: Config, pixels: Tensor) -> Tensor:
    """Patches, the class token before them, positions, registers in between; the token of masked patches is idle."""
    net, cells, name = forward.net, grid(c, forward.job), "embeddings"
    net.tape.module = name
    x = patches(
        net,
        f"{name}.patch_embeddings.projection",
        ops.to(pixels, net.training.dtype, "pixels in the model's dtype"),
        c,
        cells,
        True,
        c.count("patch_size", 14),
    )
    x = given_a_gradient(x, net.training.input_needs_grad)
    net.tape.module = name
    samples, count, width = x.shape
    if c.flag("use_mask_token", True) or registers(c):
        net.parameter(f"{name}.mask_token", 1, width)
    x = with_class(net, f"{name}.cls_token", x, width, 1, 1, width)
    side = c.count("image_size", 224) // c.count("patch_size", 14)
    table: Tensor = net.parameter(f"{name}.position_embeddings", 1, side * side + 1, width)
    if cells != (side, side) or pixels.shape[2] != pixels.shape[3]:
        table = interpolated(table, side, cells)
    x = ops.add(x, table)
    if registers(c):
        parts = [ops.rows(x, 1), net.parameter(f"{name}.register_tokens", 1, registers(c), width), ops.rows(x, count)]
        parts[1] = for_all(parts[1], samples)
        x = ops.join_rows(parts, (samples, 1 + registers(c) + count, width))
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.0))


def interpolated(table: Tensor, side: int, cells: tuple[int, int]) -> Tensor:
    """``interpolate_pos_encoding``, in fp32: the positions of a square for another grid, the class's before them."""
    width = table.shape[-1]
    first, rest = ops.rows(table, 1), ops.rows(table, side * side)
    rest = ops.resize(ops.to(rest, "fp32"), (1, cells[0] * cells[1], width))
    rest = ops.to(rest, table.dtype)
    return ops.join(first, rest, (1, cells[0] * cells[1] + 1, width))


def layer(
    net: Modules,
    c: Config,
    x: Tensor,
    ctx: Context,
    attention: Callable[[Modules, Config, Tensor, Context], tuple[Tensor, ...]],
    feed_forward: Callable[[Modules, Config, Tensor], Tensor],
) -> Tensor:
    """Norm, attention, a weight for each channel, add; the same around the feed-forward (DINOv3 too)."""
    residual = x
    x = net.layer_norm("norm1", x)
    x, *weights = attention(net, c, x, ctx)
    x = ops.add(scaled(net, "layer_scale1", x), residual, "residual stream")
    residual = x
    x = net.layer_norm("norm2", x)
    x = feed_forward(net, c, x)
    return ops.add(scaled(net, "layer_scale2", x), residual, "residual stream")


def scaled(net: Modules, name: str, x: Tensor) -> Tensor:
    """Dinov2LayerScale."""
    net.tape.module = name
    return ops.mul(x, net.parameter(f"{name}.lambda1", x.shape[-1]))


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """Dinov2Attention: every patch to every patch; eager scores stay in the model's dtype."""
    batch, length, width = x.shape
    heads, bias = c.count("num_attention_heads"), c.flag("qkv_bias", True)
    q, k, v = (
        net.linear(f"attention.{name}_proj", x, width, bias).view(batch, length, heads, width // heads)
        for name in "qkv"
    )
    out, *weights = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("attention.o_proj", out, width, True), *weights


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Dinov2MLP, or Dinov2SwiGLUFFN of two thirds of its width."""
    wide = int(x.shape[-1] * c.number("mlp_ratio", 4))
    if c.flag("use_swiglu_ffn", False):
        return gated(net, "mlp", x, ceil_div(int(wide * 2 / 3), 8) * 8, "silu", bias=True)
    return plain_mlp(net, x, "mlp.fc1", "mlp.fc2", wide, c.text("hidden_act", "gelu"))


DINOV2 = Architecture(
    classify,
    stacks=lambda c: alike(c.count("num_hidden_layers")),
    shape=shape,
    refuses=(("drop_path_rate", ...),),
)
ARCHITECTURES = {"dinov2": DINOV2, "dinov2_with_registers": replace(DINOV2, defaults={"num_register_tokens": 4})}
