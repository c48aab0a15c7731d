"""Qwen's towers: patches of whole images in one row, rotary positions of both directions, 2 x 2 patches merged."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from vramplan.analytic.architectures.decoder import NormFunction, layer_norm, rms_norm
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers.attention import eager_pieces, fused
from vramplan.analytic.layers.attention_kernels import Pieces
from vramplan.analytic.layers.mlp import gated_mlp, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotate
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config

Mlp = Callable[[Tensor], Tensor]


def width_of(c: Config) -> int:
    """Channels of a patch; Qwen2-VL gives the language model's as hidden_size."""
    return c.count("embed_dim", c.count("hidden_size"))


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """One row for each patch."""
    return flat_patches(net, c, pixels, bias=c.has("num_position_embeddings"))


def flat_patches(net: Modules, c: Config, pixels: Tensor, bias: bool) -> Tensor:
    """``nn.Conv3d`` over flattened patches: (patches, width)."""
    name, width = "visual.patch_embed.proj", width_of(c)
    net.tape.module = name
    twice, patch = c.count("temporal_patch_size", 2), c.count("patch_size", 14)
    weight = net.parameter(f"{name}.weight", width, 3, twice, patch, patch)
    shift = net.parameter(f"{name}.bias", width) if bias else None
    return ops.patches(pixels, weight, shift, (pixels.shape[0], width))


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Cosines and sines of both directions."""
    net.tape.module = "visual.rotary_pos_emb"
    dim = width_of(c) // c.count("num_heads")
    context.cos, context.sin = (
        net.tape.empty((x.shape[0], 1, dim), "fp32", f"rotary {name}") for name in ("cos", "sin")
    )
    return x


def attention(
    net: Modules,
    c: Config,
    x: Tensor,
    context: TowerContext,
    pieces: Pieces,
    bias: bool = True,
    out_bias: bool = True,
    apart: bool = False,
) -> Tensor:
    """Attention within each piece of the row; one call for each, whose results are joined.

    `apart`: queries, keys and values each have a linear layer.
    """
    (patches, width), heads = x.shape, c.count("num_heads")
    if apart:
        qkv = None
        q, k, v = (net.linear(f"attn.{n}", x, width, bias).view(patches, heads, width // heads) for n in "qkv")
    else:
        qkv = net.linear("attn.qkv", x, 3 * width, bias)
        q, k, v = ops.unbind(qkv.view(patches, 3, heads, width // heads))
    dtype = q.dtype
    net.tape.module = "attn"
    q, k = turned(q, k, context, dtype)
    q, k, v = (one.view(1, patches, heads, width // heads) for one in (q, k, v))
    out, *results = attend_in_pieces(q, k, v, context, pieces)
    out = net.linear("attn.proj", out.view(patches, width), width, out_bias)
    del qkv, v, k, q  # a list of pieces goes from its end
    return out


def attend_in_pieces(q: Tensor, k: Tensor, v: Tensor, context: TowerContext, pieces: Pieces) -> tuple[Tensor, ...]:
    """Attention of a row (1, S, heads, D) within its pieces, and the calls' results, which the caller holds."""
    if context.ctx.attention == "flash":
        return (kernels.flash_attention(q, k, v, pieces, package=True),)
    if context.ctx.attention == "eager":
        return (eager_pieces(q, k, v, pieces),)
    q, k, v = (ops.pieces(one) for one in (q, k, v))
    each = fused(q, k, v, None, context.ctx, pieces)
    each = kernels.efficient_attention(q, k, v, None, pieces) if each is None else each
    return ops.copy(each, "joined attention output"), each


def turned(q: Tensor, k: Tensor, context: TowerContext, dtype: str) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb_vision``: in fp32."""
    assert context.cos is not None
    assert context.sin is not None
    q, k = ops.to(q, "fp32"), ops.to(k, "fp32")
    cos, sin = ops.to(context.cos, "fp32"), ops.to(context.sin, "fp32")
    q_turned = rotate(q, cos, sin)
    k_turned = rotate(k, cos, sin)
    q_turned = ops.to(q_turned, dtype, "rotated")
    return q_turned, ops.to(k_turned, dtype, "rotated")


def whole_images(context: TowerContext) -> Pieces:
    """One piece for each image, or pair of frames."""
    size = context.image.rows * context.image.columns
    return Pieces((size,) * context.image.tiles * context.images)


# -- Qwen2-VL ----------------------------------------------------------------------------------------------------------


def block(
    net: Modules,
    c: Config,
    x: Tensor,
    context: TowerContext,
    pieces: Pieces,
    norm: NormFunction,
    mlp: Mlp,
    bias: bool = True,
    out_bias: bool = True,
    apart: bool = False,
) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    normed = norm(net, "norm1", x)
    out = attention(net, c, normed, context, pieces, bias, out_bias, apart)
    del normed
    x = ops.add(x, out, "residual stream")
    del out
    y = norm(net, "norm2", x)
    y = mlp(y)
    return ops.add(x, y, "residual stream")


def qwen2_layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """LayerNorm, two layers."""
    width, act = int(width_of(c) * c.number("mlp_ratio", 4)), c.text("hidden_act", "quick_gelu")
    return block(
        net,
        c,
        x,
        context,
        whole_images(context),
        layer_norm,
        lambda y: plain_mlp(net, y, "mlp.fc1", "mlp.fc2", width, act),
    )


def merged(net: Modules, c: Config, x: Tensor, out: int) -> Tensor:
    """Four neighbours to one token, two layers."""
    wide = width_of(c) * c.count("spatial_merge_size", 2) ** 2
    x = x.view(x.num_elements // wide, wide)
    x = net.linear("visual.merger.mlp.0", x, wide, True)
    return net.linear("visual.merger.mlp.2", ops.gelu(x), out, True)


def qwen2_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Norm and merge."""
    c = whole.part("vision_config")
    return joined(net, ops.pieces(merged(net, c, net.layer_norm("visual.merger.ln_q", x), c.count("hidden_size"))))


def depth(c: Config) -> list[Hashable]:
    """Every layer does the same."""
    return [None] * c.count("depth")


# -- Qwen2.5-VL --------------------------------------------------------------------------------------------------------


def kinds(c: Config) -> list[Hashable]:
    """Whether a layer attends to the whole image; the others attend to windows."""
    full = c.get("fullatt_block_indexes", [7, 15, 23, 31])
    return [number in full for number in range(c.count("depth"))]


def windows(c: Config, context: TowerContext) -> Pieces:
    """Windows of 112 pixels, cut off at the right and lower edges (get_vision_window_index)."""
    merge = c.count("spatial_merge_size", 2)
    side = c.count("window_size", 112) // merge // c.count("patch_size", 14)
    sizes = []
    for across in (context.image.rows // merge, context.image.columns // merge):
        whole, rest = divmod(across, side)
        sizes.append([side] * whole + [rest] * bool(rest))
    areas = [rows * columns * merge**2 for rows in sizes[0] for columns in sizes[1]]
    return Pieces(tuple(areas) * context.image.tiles * context.images)


def windowed(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Patches and positions sorted by window."""
    x = ops.pick_rows(x)
    x = place(net, c, context, x)
    assert context.cos is not None
    assert context.sin is not None
    context.cos, context.sin = (ops.pick_rows(one) for one in (context.cos, context.sin))
    return x


def qwen2_5_layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """RMS norm, a gated feed-forward; windows in most layers."""
    pieces, act = whole_images(context) if context.kind else windows(c, context), c.text("hidden_act", "silu")
    return block(net, c, x, context, pieces, rms_norm, lambda y: gated_mlp(net, c, y, act, True))


def qwen2_5_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Norm, merge, back in the order of the image."""
    c = whole.part("vision_config")
    x = merged(net, c, net.rms_norm("visual.merger.ln_q", x), c.count("out_hidden_size"))
    return joined(net, ops.pieces(ops.pick_rows(x)))


# -- Qwen3-VL ----------------------------------------------------------------------------------------------------------


def qwen3_place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Four learned positions of a square grid, weighted, for each patch; then cosines and sines."""
    tape, (patches, width) = net.tape, x.shape
    name = "visual.pos_embed.weight"
    tape.module = "visual.pos_embed"
    indices = tape.empty((patches, 4), "int64", "neighbours in the grid of positions")
    weights = tape.empty((patches, 4, 1), "fp32", "weights of the neighbours")
    table = net.parameter(name, c.count("num_position_embeddings"), width)
    positions = ops.sum_middle(ops.mul(ops.embedding(indices, table), weights, "weighted positions"))
    net.tower_locals += [indices, weights, positions]
    x = ops.add(x, ops.to(positions, x.dtype))
    return place(net, c, context, x)


def qwen3_layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """LayerNorm, two layers."""
    width, names = c.count("intermediate_size"), ("mlp.linear_fc1", "mlp.linear_fc2")
    return block(
        net,
        c,
        x,
        context,
        whole_images(context),
        layer_norm,
        lambda y: plain_mlp(net, y, *names, width, "gelu_pytorch_tanh"),
    )


def qwen3_merged(net: Modules, c: Config, x: Tensor, name: str, norm_last: bool) -> Tensor:
    """Norm before or behind the merge of four neighbours, two layers."""
    wide = width_of(c) * c.count("spatial_merge_size", 2) ** 2
    shape = (x.num_elements // wide, wide)
    x = net.layer_norm(f"{name}.norm", x.view(*shape)) if norm_last else net.layer_norm(f"{name}.norm", x).view(*shape)
    x = net.linear(f"{name}.linear_fc1", x, wide, True)
    return net.linear(f"{name}.linear_fc2", ops.gelu(x), c.count("out_hidden_size"), True)


def qwen3_between(net: Modules, c: Config, x: Tensor) -> None:
    """DeepStack: some layers' outputs are merged as well."""
    net.tape.enter(net.tape.phase, None)
    net.deep.append(qwen3_merged(net, c, x, f"visual.deepstack_merger_list.{len(net.deep)}", True))


def qwen3_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Norm and merge."""
    return joined(net, ops.pieces(qwen3_merged(net, whole.part("vision_config"), x, "visual.merger", False)))


def deep_layers(c: Config) -> list[int]:
    """Layers whose output goes to the language model, too."""
    return list(c.get("deepstack_visual_indexes", [8, 16, 24]))


QWEN2 = "qwen2_vl_text"
QWEN3 = VisionTower(
    embed,
    qwen3_layer,
    qwen3_project,
    lambda c: [number in deep_layers(c) for number in range(c.count("depth"))],
    "qwen3_vl_text",
    place=qwen3_place,
    between=qwen3_between,
    deep=lambda whole: len(deep_layers(whole.part("vision_config"))),
    hooked="nothing",
    of_swift="embeddings",
    token_types=True,
    returns_features=False,
    holds_first=False,
)
QWEN3_5 = replace(QWEN3, of_swift="", kinds=depth, text_type="qwen3_5_text", between=None, deep=lambda whole: 0)
TOWERS = {
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": replace(QWEN3_5, text_type="qwen3_5_moe_text"),
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": replace(QWEN3, text_type="qwen3_vl_moe_text"),
    "qwen2_vl": VisionTower(
        embed,
        qwen2_layer,
        qwen2_project,
        depth,
        QWEN2,
        place=place,
        of_swift="hook",
        token_types=True,
        returns_features=False,
        holds_first=False,
    ),
    "qwen2_5_vl": VisionTower(
        embed,
        qwen2_5_layer,
        qwen2_5_project,
        kinds,
        QWEN2,
        place=windowed,
        of_swift="hook",
        token_types=True,
        returns_features=False,
        holds_first=False,
    ),
}
