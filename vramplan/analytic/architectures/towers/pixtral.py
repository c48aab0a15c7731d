"""Pixtral under LLaVA and Mistral 3: all images in one row, separated by a mask (transformers 5.23)."""

from __future__ import annotations

from vramplan.analytic.architectures.towers.vit import all_alike, chosen_layers, llava_project, patch_tokens
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend
from vramplan.analytic.layers.mlp import activation, gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotate
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One token for each patch."""
    pixels = ops.to(pixels, net.training.dtype, "pixels in the model's dtype")
    return patch_tokens(net, "vision_tower.patch_conv", pixels, c, image, bias=False)


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """All images in one row, a norm, positions, and a mask as wide and as high as the row is long."""
    tape, width = net.tape, x.shape[-1]
    tape.module = "vision_tower"
    patches = x.num_elements // width
    x = ops.copy(x, "patches of all images").view(1, patches, width)
    x = net.rms_norm("vision_tower.ln_pre", x)
    tape.module = "vision_tower.patch_positional_embedding"
    shape = (1, patches, 1, width // c.count("num_attention_heads"))
    context.cos, context.sin = (tape.empty(shape, x.dtype, f"rotary {name}") for name in ("cos", "sin"))
    if context.ctx.attention != "flash":
        context.ctx.masks[False] = tape.empty((1, 1, patches, patches), x.dtype, "mask between images")
    return x


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Norm, attention, add; norm, gated feed-forward, add."""
    residual = x
    x = net.rms_norm("attention_norm", x)
    x, *weights = attention(net, c, x, context)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("ffn_norm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "gelu"))
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, context: TowerContext) -> tuple[Tensor, ...]:
    """Rotary attention along the row, and the attention weights that the layer holds."""
    (_, patches, width), heads = x.shape, c.count("num_attention_heads")
    q, k, v = (net.linear(f"attention.{name}_proj", x, width).view(1, patches, heads, width // heads) for name in "qkv")
    assert context.cos is not None
    assert context.sin is not None
    net.tape.module = "attention"
    q, k = ops.heads_first(q), ops.heads_first(k)
    q, k = rotate(q, context.cos, context.sin), rotate(k, context.cos, context.sin)
    out, *weights = attend(q, k, v, context.ctx)
    return net.linear("attention.o_proj", out, width), *weights


def mistral3_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """A norm, each image's patches unfolded in squares and merged, two layers."""
    c, merge = whole.part("vision_config"), whole.count("spatial_merge_size", 2) ** 2
    width, wide = c.count("hidden_size"), whole.part("text_config").count("hidden_size")
    bias = whole.flag("multimodal_projector_bias", False)
    patches = image.rows * image.columns
    images = x.num_elements // (patches * width)
    x = net.rms_norm("multi_modal_projector.norm", x)
    x = merged(net, x.view(images * patches, width), (patches,) * images, merge)
    x = net.linear("multi_modal_projector.patch_merger.merging_layer", x, width)
    x = net.linear("multi_modal_projector.linear_1", x, wide, bias)
    x = activation(whole.text("projector_hidden_act", "gelu"))(x)
    x = net.linear("multi_modal_projector.linear_2", x, wide, bias)
    return joined(net, ops.pieces(x))


def merged(net: Modules, x: Tensor, patches: tuple[int, ...], merge: int) -> Tensor:
    """``F.unfold`` of each image, joined: rows of `merge` patches."""
    net.tape.module = "multi_modal_projector.patch_merger"
    width = x.shape[-1] * merge
    parts = [
        ops.scale(one, "unfolded patches").view(one.shape[0] // merge, width) for one in ops.split_first(x, patches)
    ]
    return ops.join_rows(parts, (sum(patches) // merge, width))


TOWERS = {
    "llava/pixtral": VisionTower(
        embed, layer, llava_project, all_alike, place=place, chosen=chosen_layers, holds_cast=False
    ),
    "mistral3": VisionTower(
        embed,
        layer,
        mistral3_project,
        all_alike,
        place=place,
        chosen=chosen_layers,
        fills_cache=False,
        holds_cast=False,
    ),
}
