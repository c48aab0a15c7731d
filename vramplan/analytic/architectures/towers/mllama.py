"""Llama 3.2 Vision's tower: four tiles an image, one by one and together (transformers 5.23, modeling_mllama.py).

Patches, the input of the first layer of either kind, and every layer's output are locals of the tower's forward, in
this order in `net.tower_locals`: all live to its end, chosen or not. No layer is checkpointed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from vramplan.analytic.architectures.mllama import gate
from vramplan.analytic.architectures.towers.vit import clip_embed, tower_attention, with_class
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import CrossAttentionInput
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.images.fixed_tiles import arrangements, most_tiles
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

ALIGNED = 8
"""Patches of a tile are padded to a multiple of this."""
NAME = "vision_tower"


class Stage(NamedTuple):
    """What sets a layer of the tower apart."""

    is_global: bool = False
    """Behind the norm in the middle: gated."""
    opens: bool = False
    """The first of these."""
    chosen: int | None = None
    """Its number, if its output goes to the language model as well."""


def stages(c: Config) -> list[Hashable]:
    """Local layers, then global ones."""
    chosen = c.get("intermediate_layers_indices", (3, 7, 15, 23, 30))
    local = [Stage(chosen=number if number in chosen else None) for number in range(c.count("num_hidden_layers", 32))]
    return [*local, *(Stage(True, number == 0) for number in range(c.count("num_global_layers", 8)))]


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Each tile's place, class tokens, patches' positions in tile and canvas, a norm, padding, the mask."""
    width = x.shape[-1]
    net.tower_locals.append(x)
    net.tape.module = NAME
    x = add_tiles(net, c, f"{NAME}.pre_tile_positional_embedding", x, context.images)
    x = with_class(net, f"{NAME}.class_embedding", x, width, width)
    x = add_positions(net, c, x, context.images)
    x = net.layer_norm(f"{NAME}.layernorm_pre", x)
    net.tape.module = NAME
    padded = ceil_div(x.shape[1], ALIGNED) * ALIGNED
    x = ops.pad_rows(x, padded)
    length = x.shape[0] * padded // context.images
    context.ctx.masks[False] = mask_of_tiles(net, context.images, length)
    x = x.view(context.images, length, width)
    net.tower_locals.append(x)
    return x


def arrangement_ids(net: Modules, images: int) -> Tensor:
    """``aspect_ratio_ids``, which come with the batch."""
    return net.tape.empty((images, 1), "int64", "ids of the tiles' arrangement")


def rows_of_tables(c: Config) -> int:
    """One for each arrangement of tiles, and one for none."""
    return len(c.get("supported_aspect_ratios", arrangements(most_tiles(c)))) + 1


def add_tiles(net: Modules, c: Config, name: str, x: Tensor, images: int) -> Tensor:
    """MllamaPrecomputedAspectRatioEmbedding: a vector for each tile of the arrangement, gated."""
    net.tape.module = name
    tiles, width = most_tiles(c), x.shape[-1]
    table = net.parameter(f"{name}.embedding.weight", rows_of_tables(c), tiles * width)
    positions = ops.embedding(arrangement_ids(net, images), table).view(images * tiles, 1, width)
    positions = ops.mul(positions, ops.tanh(net.parameter(f"{name}.gate", 1)), "gated")
    return ops.add(x, positions)


def add_positions(net: Modules, c: Config, x: Tensor, images: int) -> Tensor:
    """MllamaPrecomputedPositionEmbedding: one for each patch of a tile, and one for each of the canvas, gated."""
    (tiles, patches, width), name = x.shape, f"{NAME}.gated_positional_embedding"
    net.tape.module = name
    gating = net.parameter(f"{name}.gate", 1)
    rest = ops.shift(ops.tanh(gating), "1 - gate")
    own = ops.mul(rest, net.parameter(f"{name}.embedding", patches, width), "gated positions")
    x = ops.add(x, own)
    table = net.parameter(f"{name}.tile_embedding.weight", rows_of_tables(c), most_tiles(c) * patches * width)
    positions = ops.embedding(arrangement_ids(net, images), table).view(tiles, patches, width)
    shared = ops.mul(ops.tanh(gating), positions, "gated positions")
    return ops.add(x, shared)


def mask_of_tiles(net: Modules, images: int, length: int) -> Tensor:
    """A product of every patch with every patch, times the least number: two of that size for a moment."""
    tape, dtype = net.tape, net.training.dtype
    column = tape.empty((images, length, 1), dtype, "patches that are padding")
    dtype = tape.autocast or dtype
    pairs = tape.empty((images, length, length), dtype, "pairs of padding")
    mask = tape.empty((images, 1, length, length), dtype, "mask of tiles")
    del column, pairs
    return mask


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add; both gated in global layers."""
    stage = context.kind
    assert isinstance(stage, Stage)
    if stage.opens:
        x = opened(net, c, x, context)
    residual = x
    x = net.layer_norm("input_layernorm", x)
    heads, names = c.count("attention_heads", 16), ("q_proj", "k_proj", "v_proj", "o_proj")
    x, *weights = tower_attention(net, x, context.ctx, heads, "self_attn", names, False, out_bias=False)
    x = ops.add(residual, gate(net, "gate_attn", x) if stage.is_global else x, "residual stream")
    residual = x
    x = net.layer_norm("post_attention_layernorm", x)
    x = plain_mlp(net, x, "mlp.fc1", "mlp.fc2", c.count("intermediate_size"), c.text("hidden_act", "gelu"))
    x = ops.add(residual, gate(net, "gate_ffn", x) if stage.is_global else x, "residual stream")
    net.tower_locals.append(x)
    return x


def opened(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Between the two kinds of layers: a norm, and each tile's place once more; played as part of the layer."""
    net.tower_locals[1] = x
    x = net.layer_norm("layernorm_post", x)
    tiles, (images, length, width) = most_tiles(c), x.shape
    x = add_tiles(net, c, "post_tile_positional_embedding", x.view(images * tiles, length // tiles, width), images)
    net.tower_locals[1] = x = x.view(images, length, width)
    return x


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The last layer's output and the chosen ones' side by side, padding cut off: (tiles, keys, all their widths)."""
    net.tape.module = NAME
    (images, length, width), tiles = x.shape, most_tiles(c)
    padded, patches = length // tiles, (c.count("image_size", 448) // c.count("patch_size", 14)) ** 2 + 1
    own = ops.rows(x.view(images * tiles, padded, width), patches)
    chosen = [net.tower_locals[2 + number] for number in c.get("intermediate_layers_indices", (3, 7, 15, 23, 30))]
    states = ops.join_rows(chosen, (images * tiles, padded, len(chosen) * width))
    return ops.cat(own, ops.rows(states, patches))


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """One layer."""
    return net.linear("multi_modal_projector", x, whole.part("text_config").count("hidden_size"), True)


def across(net: Modules, job: Job, shape: tuple[int, ...], features: Tensor) -> CrossAttentionInput:
    """_prepare_cross_attention_mask: which tokens see which keys, repeated to all of them and turned around."""
    tape, dtype, (batch, length) = net.tape, net.training.dtype, shape
    tape.module = "inputs"
    full = (batch, 1, length, features.shape[0] * features.shape[1] // batch)
    seen = tape.empty(full, "int64", "keys that are seen")
    unseen = ops.to(tape.empty(full, "fp32", "keys that are not"), dtype)
    chosen = tape.empty(full, "bool", "keys that are not")
    mask = tape.empty(full, dtype, "mask of images")
    del seen, chosen
    open_keys = tape.empty(full, "bool", "keys that are seen")
    rows = tape.empty((batch, length, 1), dtype, "rows with images")
    del open_keys, unseen
    return CrossAttentionInput(features, mask, rows)


TOWERS = {
    "mllama": VisionTower(
        clip_embed,
        layer,
        project,
        stages,
        "mllama_text",
        place=place,
        finish=finish,
        returns_features=False,
        holds_first=False,
        holds_cast=False,
        checkpoints=False,
        across=across,
    ),
}
