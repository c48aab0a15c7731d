"""LFM2-VL's tower: SigLIP 2 on patches of any grid, padded to equal numbers; features of one tile after another.

Mirrors transformers 5.23, modeling_siglip2.py and modeling_lfm2_vl.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.towers.siglip import NAME, finish, layer
from vramplan.analytic.architectures.towers.vit import all_alike
from vramplan.analytic.architectures.vision_tower import NO_TEXT_TOWER, TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def grids(image: ProcessedImage) -> list[tuple[int, int]]:
    """Rows and columns of patches of each tile; those of the whole image come last."""
    return [(image.rows, image.columns)] * (image.tiles - 1) + [image.features]


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One row for each patch, padding included."""
    if c.flag("vision_use_head", True):
        raise UnsupportedError("vision_use_head: SigLIP 2's pooling head is not supported")
    net.tape.module = f"{NAME}.embeddings"
    pixels = ops.to(pixels, net.training.dtype, "pixels in the model's dtype")
    return net.linear(f"{NAME}.embeddings.patch_embedding", pixels, c.count("hidden_size", 768), True)


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The table of positions resized for each tile, which a frozen table needs no graph for; a mask without padding.

    Raises:
        UnsupportedError: if the table trains.
    """
    tape, (tiles, patches, width) = net.tape, x.shape
    tape.module = f"{NAME}.embeddings"
    table = net.parameter(f"{NAME}.embeddings.position_embedding.weight", c.count("num_patches", 256), width)
    if table.trains:
        raise UnsupportedError(
            f"{setting('vision', 'train')}: what LFM2-VL's resized positions keep is not modelled yet; use"
            f" {setting('vision', 'lora')} or frozen"
        )
    positions = tape.empty((tiles, patches, width), table.dtype, "positions of each tile")
    for rows, columns in grids(context.image):
        resized = tape.empty((width, rows * columns), table.dtype, "resized positions")
        del resized
    x = ops.add(x, positions)
    del positions
    is_full = all(rows * columns == patches for rows, columns in grids(context.image))
    if not is_full and context.ctx.attention != "flash":
        dtype = x.dtype if context.ctx.attention == "eager" else "bool"
        context.ctx.masks[False] = attention_mask(tape, tiles, patches, dtype, MaskParts(causal=False, padded=True))
    context.ctx.padded = not is_full
    return x


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """For each tile: squares of patches made one token, a norm, two layers; then all in one row."""
    factor, (tiles, patches, width) = whole.count("downsample_factor", 2), x.shape
    inner, wide = whole.count("projector_hidden_size", 2560), whole.part("text_config").count("hidden_size", 2560)
    bias, name, parts = whole.flag("projector_bias", True), "multi_modal_projector", []
    for rows, columns in grids(image) * (tiles // image.tiles):
        net.tape.module = "pixel shuffle"
        one = ops.sliced(x, (patches, width))
        if rows * columns < patches:
            one = ops.sliced(one, (rows * columns, width))
        one = ops.copy(one, "shuffled patches").view(1, rows * columns // factor**2, width * factor**2)
        if whole.flag("projector_use_layernorm", True):
            one = net.layer_norm(f"{name}.layer_norm", one)
        one = net.linear(f"{name}.linear_1", one, inner, bias)
        one = activation(whole.text("projector_hidden_act", "gelu"))(one)
        one = net.linear(f"{name}.linear_2", one, wide, bias)
        parts.append(one.view(one.shape[1], wide))
        del one
    net.multimodal_locals += parts
    net.tape.module = "inputs"
    return ops.join_rows(parts, (sum(part.shape[0] for part in parts), wide))


TOWERS = {
    "lfm2_vl": VisionTower(
        embed,
        layer,
        project,
        all_alike,
        place=place,
        finish=finish,
        holds_cast=False,
        attention=("sdpa", "eager"),
        tower_type="siglip2_vision_model",
        wrapped=NO_TEXT_TOWER.format("Siglip2"),
    ),
}
