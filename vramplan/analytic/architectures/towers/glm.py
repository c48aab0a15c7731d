"""GLM-4.1V's tower: whole images in one row, positions sampled from a square table (modeling_glm4v.py)."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.decoder import rms_norm
from vramplan.analytic.architectures.towers import qwen
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One row for each patch, normed."""
    return net.rms_norm("visual.post_conv_layernorm", qwen.flat_patches(net, c, pixels, bias=True))


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Cosines and sines of both directions; a learned position for each patch, sampled between those of a square."""
    x = qwen.place(net, c, context, x)
    name, (patches, width) = "visual.embeddings.position_embedding", x.shape
    across = c.count("image_size", 336) // c.count("patch_size", 14)
    net.tape.module = name
    table = net.parameter(f"{name}.weight", across * across, width).reordered()  # sampled with channels first
    as_image = ops.to(table, "fp32", "table of positions in fp32")
    points = net.tape.empty((1, patches, 1, 2), "fp32", "points in the table of positions")
    positions = ops.sampled(as_image, points, (patches, width))
    return ops.add(x, ops.to(positions, table.dtype, "positions"))


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """RMS norm, a gated feed-forward as wide as the language model."""
    width, act = c.count("out_hidden_size"), c.text("hidden_act", "silu")
    return qwen.block(
        net,
        c,
        x,
        context,
        qwen.whole_images(context),
        rms_norm,
        lambda y: gated(net, "mlp", y, width, act),
        bias=c.flag("attention_bias", False),
        out_bias=False,
    )


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Norm; squares of patches to one token by a convolution."""
    x = net.rms_norm("visual.post_layernorm", x)
    name, (patches, width), merge = "visual.downsample", x.shape, c.count("spatial_merge_size", 2)
    out, tokens = c.count("out_hidden_size"), patches // merge**2
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", out, width, merge, merge).reordered()  # patches have their channels last
    shift = net.parameter(f"{name}.bias", out)
    return ops.patches(x.view(tokens, merge**2 * width), weight, shift, (tokens, out))


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """A layer, a norm, a gated feed-forward."""
    c, name = whole.part("vision_config"), "visual.merger"
    x = net.linear(f"{name}.proj", x, x.shape[-1])
    x = ops.gelu(net.layer_norm(f"{name}.post_projection_norm", x))
    x = gated(net, name, x, c.count("intermediate_size"), c.text("hidden_act", "silu"))
    return joined(net, ops.pieces(x))


GLM = VisionTower(
    embed,
    layer,
    project,
    qwen.depth,
    "glm4v_text",
    place=place,
    finish=finish,
    hooked="nothing",
    token_types=True,
    returns_features=False,
    holds_first=False,
)
TOWERS = {"glm4v": GLM, "glm46v": replace(GLM, text_type=None), "glm4v_moe": replace(GLM, text_type="glm4v_moe_text")}
