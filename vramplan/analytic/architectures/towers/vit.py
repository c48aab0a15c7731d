"""Plain vision transformers over square tiles: InternViT, CLIP (transformers 5.23, modeling_<type>.py)."""

from __future__ import annotations

from collections.abc import Hashable

from vramplan.analytic.architectures.vision_tower import NO_TEXT_TOWER, TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Resident, Tensor
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import SpecError
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def all_alike(c: Config) -> list[Hashable]:
    """Every layer does the same."""
    return [None] * c.count("num_hidden_layers")


def with_class(net: Modules, name: str, x: Tensor, width: int, *shape: int) -> Tensor:
    """A class token in front of each tile's patches."""
    tiles, patches, _ = x.shape
    token = net.parameter(name, *shape)
    return ops.join(token, x, (tiles, patches + 1, width))


def tower_attention(
    net: Modules,
    x: Tensor,
    ctx: Context,
    heads: int,
    prefix: str,
    names: tuple[str, ...],
    bias: bool,
    norms: tuple[str, str] | None = None,
    in_fp32: bool = True,
    out_bias: bool = True,
) -> tuple[Tensor, ...]:
    """Attention of every patch to every patch of its tile, and the attention weights that the layer holds."""
    tiles, patches, width = x.shape
    first, second, third, last = (f"{prefix}.{name}" for name in names)
    made = {name: net.linear(name, x, width, bias) for name in (first, second, third)}
    q, k, v = (made.pop(f"{prefix}.{one}_proj") for one in "qkv")
    if norms is not None:
        q, k = (net.rms_norm(f"{prefix}.{name}", one) for name, one in zip(norms, (q, k), strict=True))
    q, k, v = (one.view(tiles, patches, heads, width // heads) for one in (q, k, v))
    out, *weights = attend(q, k, v, ctx, scores=Softcap(in_fp32=in_fp32))
    return net.linear(last, out, width, out_bias), *weights


# -- InternVL ----------------------------------------------------------------------------------------------------------


def intern_norm(net: Modules, c: Config, name: str, x: Tensor) -> Tensor:
    """LayerNorm, or RMS norm in the tower of 6 billion parameters."""
    return net.rms_norm(name, x) if c.text("norm_type", "layer_norm") == "rms_norm" else net.layer_norm(name, x)


def intern_embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One token for each patch of each tile."""
    return patch_tokens(net, "vision_tower.embeddings.patch_embeddings.projection", pixels, c, image, bias=True)


def table_of(net: Modules, name: str, count: int, width: int) -> Tensor:
    """A table of positions looked up from end to end: ``nn.Embedding(position_ids)``."""
    net.tape.module = name
    return ops.embedding(Tensor(net.tape, Resident(), (1, count), "int64"), net.parameter(name, count, width))


def patch_tokens(net: Modules, name: str, pixels: Tensor, c: Config, image: ProcessedImage, bias: bool) -> Tensor:
    """``nn.Conv2d`` whose stride is its kernel: (tiles, patches, width)."""
    return patches(net, name, pixels, c, (image.rows, image.columns), bias)


def patches(
    net: Modules, name: str, pixels: Tensor, c: Config, grid: tuple[int, int], bias: bool, patch: int | None = None
) -> Tensor:
    """The same for a `grid` of rows and columns; `patch` if a rest at the edges is left out."""
    net.tape.module = name
    width, (tiles, channels, height, _) = c.count("hidden_size"), pixels.shape
    patch = height // grid[0] if patch is None else patch
    weight = net.parameter(f"{name}.weight", width, channels, patch, patch)
    shift = net.parameter(f"{name}.bias", width) if bias else None
    return ops.patches(pixels, weight, shift, (tiles, grid[0] * grid[1], width), transposed=True)


def intern_place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The class token, and a learned position for each."""
    width = x.shape[-1]
    net.tape.module = "vision_tower.embeddings"
    x = with_class(net, "vision_tower.embeddings.cls_token", x, width, 1, 1, width)
    table = net.parameter("vision_tower.embeddings.position_embeddings", 1, x.shape[1], width)
    return ops.dropout(ops.add(x, table), c.number("hidden_dropout_prob", 0.0))


def intern_layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Norm, attention, a weight for each channel, add; the same around the feed-forward."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    norms = ("q_norm", "k_norm") if c.flag("use_qk_norm", False) else None
    normed = intern_norm(net, c, "layernorm_before", x)
    out, *weights = tower_attention(
        net,
        normed,
        context.ctx,
        heads,
        "attention",
        ("q_proj", "k_proj", "v_proj", "projection_layer"),
        c.flag("attention_bias", False),
        norms,
        in_fp32=False,
    )
    del normed
    net.tape.module = ""
    out = ops.mul(net.parameter("lambda_1", width), out)
    x = ops.add(out, x, "residual stream")
    y = intern_norm(net, c, "layernorm_after", x)
    y = plain_mlp(net, y, "mlp.fc1", "mlp.fc2", c.count("intermediate_size"), c.text("hidden_act", "gelu"))
    net.tape.module = ""
    y = ops.mul(net.parameter("lambda_2", width), y)
    return ops.add(y, x, "residual stream")


def intern_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """The class token dropped, four patches made one token by pixel shuffle, two layers."""
    net.tape.module = "pixel shuffle"
    tiles, _, width = x.shape
    shrink = round(1 / whole.number("downsample_ratio", 0.5)) ** 2
    x = ops.rows(x, image.rows * image.columns)
    x = ops.copy(x, "shuffled patches")
    x = ops.copy(x, "shuffled patches")
    x = x.view(tiles, image.rows * image.columns // shrink, width * shrink)
    wide = whole.part("text_config").count("hidden_size")
    x = net.layer_norm("multi_modal_projector.layer_norm", x)
    x = net.linear("multi_modal_projector.linear_1", x, wide, True)
    x = activation(whole.text("projector_hidden_act", "gelu"))(x)
    return net.linear("multi_modal_projector.linear_2", x, wide, True)


# -- CLIP --------------------------------------------------------------------------------------------------------------


def clip_embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One token for each patch of each tile."""
    pixels = ops.to(pixels, net.training.dtype, "pixels in the model's dtype")
    return patch_tokens(net, "vision_tower.embeddings.patch_embedding", pixels, c, image, bias=False)


def clip_place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The class token, a learned position for each, a norm."""
    width = x.shape[-1]
    net.tape.module = "vision_tower.embeddings"
    x = with_class(net, "vision_tower.embeddings.class_embedding", x, width, width)
    x = ops.add(x, table_of(net, "vision_tower.embeddings.position_embedding.weight", x.shape[1], width))
    return net.layer_norm("vision_tower.pre_layrnorm", x)


def clip_layer(net: Modules, c: Config, x: Tensor, context: TowerContext, act: str = "quick_gelu") -> Tensor:
    """One layer of a tower."""
    return clip_block(net, c, x, context.ctx, c.text("hidden_act", act))


def clip_block(net: Modules, c: Config, x: Tensor, ctx: Context, act: str) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.layer_norm("layer_norm1", x)
    x, *weights = tower_attention(
        net, x, ctx, c.count("num_attention_heads"), "self_attn", ("q_proj", "k_proj", "v_proj", "out_proj"), True
    )
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("layer_norm2", x)
    x = plain_mlp(net, x, "mlp.fc1", "mlp.fc2", c.count("intermediate_size"), act)
    return ops.add(residual, x, "residual stream")


def clip_finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """A norm of the class token, which nobody asks for."""
    net.layer_norm("vision_tower.post_layernorm", ops.copy(ops.rows(x, 1)))
    return x


def chosen_layers(whole: Config, usual: int = -2) -> tuple[int, ...]:
    """vision_feature_layer, a number or a list of them, counted from the end."""
    layers = whole.get("vision_feature_layer", usual)
    states = whole.part("vision_config").count("num_hidden_layers") + 1
    layers = [layers] if isinstance(layers, int) else layers
    if not isinstance(layers, list) or not all(isinstance(one, int) and -states <= one < states for one in layers):
        raise SpecError(f"vision_feature_layer = {layers!r}: expected layers of the tower, {-states} to {states - 1}")
    return tuple(layer if layer < 0 else layer - states for layer in layers)


def two_layers(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """The class token dropped if the configuration says so, two layers."""
    if whole.text("vision_feature_select_strategy", "default") == "default":
        x = ops.rows(x, image.rows * image.columns)
    wide, bias = whole.part("text_config").count("hidden_size"), whole.flag("multimodal_projector_bias", True)
    x = net.linear("multi_modal_projector.linear_1", x, wide, bias)
    x = activation(whole.text("projector_hidden_act", "gelu"))(x)
    return net.linear("multi_modal_projector.linear_2", x, wide, bias)


def llava_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Two layers, the features of all images in one tensor."""
    x = two_layers(net, whole, image, x)
    net.multimodal_locals.append(x)
    return ops.copy(x, "features of all images")


def anyres_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Two layers, tiles put together; a video's frames are shrunk instead."""
    x = two_layers(net, whole, image, x)
    return pooled(net, image, x) if image.frames else packed(net, image, x)


def pooled(net: Modules, image: ProcessedImage, x: Tensor) -> Tensor:
    """Each frame's features halved both ways, all frames in one row, an end behind them (apply_pooling)."""
    net.tape.module = "video features"
    (frames, _, width), each = x.shape, image.features[0] * image.features[1]
    videos = frames // image.frames
    x = ops.copy(x, "features of frames, channels first")
    x = ops.resize(x, (frames, each, width))
    x = ops.copy(x, "features of all frames")
    newline = net.parameter("image_newline", width)
    x = ops.join(newline, x.view(videos, image.frames * each, width), (videos, image.tokens, width))
    net.multimodal_locals.append(x)
    return x.view(videos * image.tokens, width)


def packed(net: Modules, image: ProcessedImage, x: Tensor) -> Tensor:
    """Tiles put together as an image, padding cut off, an end behind each row, the whole image first.

    One image after another (pack_image_features), then all together.
    """
    net.tape.module = "image features"
    width = x.shape[-1]
    images = x.shape[0] // image.tiles
    rows, columns = image.features
    newline = net.parameter("image_newline", width)
    parts = []
    for one in ops.split_first(x, (image.tiles,) * images):
        base, tiles = ops.split_first(one, (1, image.tiles - 1))
        tiles = ops.copy(tiles, "tiles as an image")
        tiles = ops.cut(tiles, (rows, columns, width))
        tiles = ops.join(newline, tiles, (rows, columns + 1, width))
        parts.append(ops.join_rows([base, tiles], (image.tokens, width)))
        del base, tiles, one
    net.multimodal_locals += parts
    return ops.join_rows(parts, (images * image.tokens, width))


TOWERS = {
    "internvl": VisionTower(intern_embed, intern_layer, intern_project, all_alike, place=intern_place),
    "llava": VisionTower(
        clip_embed,
        clip_layer,
        llava_project,
        all_alike,
        place=clip_place,
        finish=clip_finish,
        chosen=chosen_layers,
        holds_cast=False,
        tower_type="clip_vision_model",
        wrapped=NO_TEXT_TOWER.format("CLIP"),
    ),
    "llava_next": VisionTower(
        clip_embed,
        clip_layer,
        anyres_project,
        all_alike,
        place=clip_place,
        finish=clip_finish,
        chosen=chosen_layers,
        fills_cache=False,
        holds_cast=False,
        tower_type="clip_vision_model",
        wrapped=NO_TEXT_TOWER.format("CLIP"),
    ),
}
