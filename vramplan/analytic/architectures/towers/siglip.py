"""SigLIP's tower under Gemma 3, PaliGemma, LLaVA, Aya Vision, Idefics 3 and SmolVLM (transformers 5.23)."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.siglip import pooled
from vramplan.analytic.architectures.towers.vit import (
    all_alike,
    anyres_project,
    chosen_layers,
    clip_layer,
    patch_tokens,
    table_of,
)
from vramplan.analytic.architectures.vision_tower import NO_TEXT_TOWER, TowerContext, VisionTower, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config

NAME = "vision_tower"


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One token for each patch of each tile."""
    pixels = ops.to(pixels, net.training.dtype, "pixels in the model's dtype")
    return patch_tokens(net, f"{NAME}.embeddings.patch_embedding", pixels, c, image, bias=True)


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """A learned position for each patch."""
    return ops.add(x, table_of(net, f"{NAME}.embeddings.position_embedding.weight", x.shape[1], x.shape[2]))


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """CLIP's layer with another activation."""
    return clip_layer(net, c, x, context, "gelu_pytorch_tanh")


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The last norm, and a head that pools what nobody asks for."""
    x = net.layer_norm(f"{NAME}.post_layernorm", x)
    if c.flag("vision_use_head", True) and c.text("model_type", "") == "siglip_vision_model":
        pooled(net, c, x, f"{NAME}.head")
    return x


def paligemma_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """One layer."""
    return net.linear("multi_modal_projector.linear", x, whole.part("vision_config").count("projection_dim"), True)


def gemma3_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Patches averaged in squares, a norm, one product in the dtype of the patches."""
    (tiles, _, width), dtype = x.shape, x.dtype
    net.tape.module = "multi_modal_projector"
    x = ops.copy(x, "patches as an image")
    x = ops.average(x, (tiles, image.tokens, width))
    x = net.rms_norm("multi_modal_projector.mm_soft_emb_norm", x, offset=True)
    wide = whole.part("text_config").count("hidden_size")
    net.tape.module = "multi_modal_projector"
    weight = net.parameter("multi_modal_projector.mm_input_projection_weight", width, wide)
    return ops.to(ops.product(x, weight), dtype)


def onevision_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """As LLaVA-NeXT; the model's forward keeps all that the tower returns, with the state that was chosen."""
    net.multimodal_locals.append(x)
    return anyres_project(net, whole, image, x)


def idefics_place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """A learned position for each patch of each tile, looked up one by one."""
    tiles, patches, width = x.shape
    net.tape.module = f"{NAME}.embeddings"
    ids = net.tape.empty((tiles, patches), "int64", "positions of patches")
    table = net.parameter(f"{NAME}.embeddings.position_embedding.weight", patches, width)
    return ops.add(x, ops.embedding(ids, table))


def idefics_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Squares of patches made one token by pixel shuffle, one layer."""
    net.tape.module = "pixel shuffle"
    squares = whole.count("scale_factor", 2) ** 2
    x = ops.copy(ops.copy(x, "shuffled patches"), "shuffled patches")
    x = x.view(x.num_elements // (x.shape[-1] * squares), x.shape[-1] * squares)
    x = net.linear("multi_modal_projector.modality_projection.proj", x, whole.part("text_config").count("hidden_size"))
    return joined(net, x)


IDEFICS = VisionTower(
    embed,
    layer,
    idefics_project,
    all_alike,
    place=idefics_place,
    finish=finish,
    fills_cache=False,
    holds_cast=False,
    drops_empty=True,
    hooked="placed",
    wrapped="transformers names the attention of the tower's layers for a group each, which is not modelled",
)
GEMMAS = VisionTower(
    embed,
    layer,
    gemma3_project,
    all_alike,
    place=place,
    finish=finish,
    holds_cast=False,
    masks_text=lambda whole, sliding: True,
    wrapped=NO_TEXT_TOWER.format("Siglip"),
)


NEXT = VisionTower(
    embed,
    layer,
    anyres_project,
    all_alike,
    place=place,
    finish=finish,
    chosen=chosen_layers,
    fills_cache=False,
    holds_cast=False,
    wrapped=NO_TEXT_TOWER.format("Siglip"),
)


def aya_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Squares of patches made one token, a norm, one layer whose halves gate each other, one more."""
    name, (tiles, patches, width) = "multi_modal_projector", x.shape
    net.tape.module = "pixel shuffle"
    squares, wide = whole.count("downsample_factor", 2) ** 2, whole.part("text_config").count("hidden_size")
    x = ops.copy(ops.copy(x, "shuffled patches"), "shuffled patches")
    x = net.layer_norm(f"{name}.layernorm", x.view(tiles, patches // squares, width * squares))
    x = net.linear(f"{name}.linear_1", x, whole.count("alignment_intermediate_size", wide), True)
    half = x.shape[-1] // 2
    first, gate = ops.split(x, half, half)
    x = ops.mul(ops.silu(gate), first, "gated")
    del first, gate
    return net.linear(f"{name}.linear_2", x, wide, True)


TOWERS = {
    "idefics3": IDEFICS,
    "smolvlm": IDEFICS,
    "paligemma": replace(GEMMAS, project=paligemma_project),
    "gemma3": GEMMAS,
    "aya_vision": replace(
        GEMMAS,
        project=aya_project,
        chosen=lambda whole: chosen_layers(whole, -1),
        masks_text=lambda whole, sliding: False,
    ),
    "llava_next/siglip_vision_model": NEXT,
    "llava_onevision": replace(NEXT, project=onevision_project, tower_type="siglip_vision_model"),
}
