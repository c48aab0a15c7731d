"""MiniCPM-V's tower: SigLIP's layers on images in one row, windows merged between two of them (transformers 5.23).

Mirrors modeling_minicpmv4_6.py; version 4.7 differs in the positions of its text. The pixels of all images, overviews
and slices alike, are one row of patches.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from vramplan.analytic.architectures.towers.qwen import attend_in_pieces
from vramplan.analytic.architectures.vision_tower import MERGES, TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Resident, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers.attention_kernels import Pieces
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import UnsupportedError
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.images.minicpm import FINE
from vramplan.inputs.model_spec import Config

NAME, PROJECTOR = "vision_tower", "merger"
WINDOW = 4
"""Patches of a window, and of what is made one token."""
WIDE, NARROW = "wide", "narrow"
"""Kinds of layers: before and behind the one whose output is merged."""


def is_fine(c: Config) -> bool:
    """Whether windows are not merged between the tower's layers."""
    return c.text("downsample_mode", "16x") == FINE


def kinds(c: Config) -> list[Hashable]:
    """The number of patches that each layer gets.

    Raises:
        UnsupportedError: for windows of other sizes, or none, which the processor's tokens do not go with.
    """
    layers, merging = c.count("num_hidden_layers"), c.get("insert_layer_id", 6)
    for key in ("window_kernel_size", "merge_kernel_size"):
        if list(c.get(key, (2, 2))) != [2, 2]:
            raise UnsupportedError(f"{key} = {c.get(key)!r}: only 2 x 2 patches are modelled")
    if c.count("merger_times", 1) != 1:
        raise UnsupportedError(f"merger_times = {c.get('merger_times')}: only 1 is modelled")
    if is_fine(c):
        return [*[WIDE] * layers]
    if not isinstance(merging, int) or not 0 <= merging < layers:
        raise UnsupportedError(f"insert_layer_id = {merging!r}: only one of the tower's {layers} layers is modelled")
    return [*[WIDE] * merging, MERGES, *[NARROW] * (layers - merging - 1)]


def views(image: ProcessedImage) -> list[int]:
    """Patches of the overview and of each slice."""
    rows, columns = image.features
    return [rows * columns] + [image.rows * image.columns] * (image.tiles - 1)


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """``nn.Conv2d`` over all patches of the batch: (1, patches, width)."""
    name, width, patch = f"{NAME}.embeddings.patch_embedding", c.count("hidden_size"), c.count("patch_size")
    net.tape.module = name
    weight, bias = net.parameter(f"{name}.weight", width, 3, patch, patch), net.parameter(f"{name}.bias", width)
    return ops.patches(pixels, weight, bias, (1, pixels.num_elements // (3 * patch**2), width), transposed=True)


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The nearest of a square of learned positions for each patch; unless windows are merged, the sum is held."""
    name, (_, patches, width) = f"{NAME}.embeddings.position_embedding", x.shape
    net.tape.module = name
    ids = net.tape.empty((patches,), "int64", "positions of patches")
    table = net.parameter(f"{name}.weight", (c.count("image_size") // c.count("patch_size")) ** 2, width)
    x = ops.add(x, ops.embedding(ids, table).view(1, patches, width))
    if is_fine(c):
        net.tower_locals.append(x)
    return x


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Norm, attention within each view, add; norm, feed-forward, add."""
    share = WINDOW if context.kind == NARROW else 1
    pieces = Pieces(tuple(patches // share for patches in views(context.image)) * context.images)
    residual = x
    x = net.layer_norm("layer_norm1", x)
    x = attention(net, c, x, context, pieces, "self_attn")
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("layer_norm2", x)
    x = plain_mlp(net, x, "mlp.fc1", "mlp.fc2", c.count("intermediate_size"), act_of(c))
    return ops.add(residual, x, "residual stream")


def act_of(c: Config) -> str:
    """The activation function of the layers."""
    return c.text("hidden_act", "gelu_pytorch_tanh")


def attention(net: Modules, c: Config, x: Tensor, context: TowerContext, pieces: Pieces, name: str) -> Tensor:
    """Attention within each piece of the row, whose calls' results are joined."""
    (_, patches, width), heads = x.shape, c.count("num_attention_heads")
    q, k, v = (
        net.linear(f"{name}.{part}_proj", x, width, True).view(1, patches, heads, width // heads) for part in "qkv"
    )
    net.tape.module = name
    if context.ctx.attention != "flash":  # split along heads that come first
        q, k, v = (ops.heads_first(one) for one in (q, k, v))
    out, *results = attend_in_pieces(q, k, v, context, pieces)
    return net.linear(f"{name}.out_proj", out.view(1, patches, width), width, True)


def merge(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """MiniCPMV4_6ViTWindowAttentionMerger: attention within windows, whose patches become one, beside their mean."""
    name, residual, (_, patches, width) = f"{NAME}.vit_merger", x, x.shape
    windows = patches // WINDOW
    x = net.layer_norm(f"{name}.layer_norm1", x)
    net.tape.module = name
    order = net.tape.empty((patches,), "int64", "patches by window")
    x = by_window(x, order)
    x = attention(net, c, x, context, Pieces((WINDOW,) * windows), f"{name}.self_attn")
    net.tape.module = name
    x = ops.add(by_window(residual, order), x, "residual stream")
    mean = ops.mean(x.view(windows, WINDOW, width), 1)
    merged = net.layer_norm(f"{name}.pre_norm", x.view(windows, WINDOW * width))
    merged = net.linear(f"{name}.linear_1", merged, WINDOW * c.count("intermediate_size"), True)
    merged = ops.gelu(merged)
    merged = net.linear(f"{name}.linear_2", merged, width, True)
    return ops.add(merged, mean, "merged windows").view(1, windows, width)


def by_window(x: Tensor, order: Tensor) -> Tensor:
    """``x[:, order, :]``, which keeps the order for backward."""
    picked = ops.pick_rows(x)
    x.tape.save(picked.node, order)
    return picked


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The last norm; a merger of windows that does not run is loaded all the same."""
    if is_fine(c):
        idle = replace(net, tape=Tape())
        with idle.tape.no_grad():
            merge(idle, c, context, Tensor(idle.tape, Resident(), x.shape, x.dtype))
        for key, parameter in idle.tape.parameters.items():
            net.tape.parameters.setdefault(key, parameter)
    return net.layer_norm(f"{NAME}.post_layernorm", x)


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """MiniCPMV4_6Merger: for each view, squares of patches made one token, a norm, two layers; then all in one row."""
    (_, patches, width), wide, name = x.shape, whole.part("text_config").count("hidden_size"), f"{PROJECTOR}.mlp.0"
    share = 1 if is_fine(whole) else WINDOW
    sizes = [size // share for size in views(image)]
    for size in sizes * (patches // sum(sizes)):
        net.tape.module = PROJECTOR
        one = ops.sliced(x, (patches, width))
        if size < patches:
            one = ops.sliced(one, (size, width))
        one = ops.copy(one, "squares of patches").view(size // WINDOW, WINDOW * width)
        one = net.layer_norm(f"{name}.pre_norm", one)
        one = net.linear(f"{name}.linear_1", one, WINDOW * width, True)
        one = ops.gelu(one)
        net.multimodal_locals.append(net.linear(f"{name}.linear_2", one, wide, True))
        del one
    parts = net.multimodal_locals[-len(sizes) * (patches // sum(sizes)) :]
    net.tape.module = "inputs"
    return ops.join_rows(parts, (patches // WINDOW, wide))


MINICPM = VisionTower(
    embed,
    layer,
    project,
    kinds,
    place=place,
    merge=merge,
    finish=finish,
    takes_over=("insert_layer_id", "downsample_mode", "merge_kernel_size", "merger_times"),
    returns_features=False,
    holds_first=False,
    loads=(f"{NAME}.embeddings", 0, f"{NAME}.post_layernorm", NAME, "model.embed_tokens", 1, "model.norm", PROJECTOR),
    no_rollouts="TRL 1.16 stops at its target_sizes, and other trainers were not compared",
    wrapped="transformers names the tower's embeddings and its merger for a group each, which is not modelled",
)
TOWERS = {"minicpmv4_6": MINICPM, "minicpmv4_7": replace(MINICPM, token_types=True)}
