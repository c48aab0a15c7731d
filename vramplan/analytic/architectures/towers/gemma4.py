"""Gemma 4's tower: patches of a whole image up to a budget, attention with norms on its heads, pooled by position.

Every image is padded to the budget. Mirrors transformers 5.23, modeling_gemma4.py.
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures import gemma
from vramplan.analytic.architectures.gemma4 import norm
from vramplan.analytic.architectures.towers import gemma4_audio
from vramplan.analytic.architectures.towers.vit import all_alike
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, frozen, idle_linear, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, rotate
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

NAME = "vision_tower"
EMBEDDER = f"{NAME}.patch_embedder"
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """Gemma4VisionPatchEmbedder: pixels from -1 to 1, one row for each patch.

    A quantized weight has no floating dtype to cast them to: they stay in fp32, and so do all states of the tower.
    """
    net.tape.module = EMBEDDER
    pixels = ops.scale(ops.shift(pixels, "shifted pixels"), "pixels from -1 to 1")
    if net.training.quantize == "none":
        pixels = ops.to(pixels, net.training.dtype, "pixels in the model's dtype")
    return net.linear(f"{EMBEDDER}.input_proj", pixels, c.count("hidden_size", 768))


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """A learned position for each direction, none for padding; a mask without padding; cosines and sines."""
    tape, (images, patches, width) = net.tape, x.shape
    tape.module = NAME
    context.padding = tape.empty((images, patches, 1), "bool", "where padding is")
    x = ops.add(x, positions(net, c, context.padding, (images, patches, width)))
    tape.module = f"{NAME}.encoder"
    is_whole = context.image.rows * context.image.columns == patches
    if not is_whole or context.ctx.attention == "eager":
        dtype = x.dtype if context.ctx.attention == "eager" else "bool"
        context.ctx.masks[False] = attention_mask(tape, images, patches, dtype, MaskParts(causal=False, padded=True))
    tape.module = f"{NAME}.encoder.rotary_emb"
    shape = (images, patches, 1, c.count("head_dim", 64))
    tables = [tape.empty(shape, "fp32", f"rotary {name}") for name in ("cos", "sin")]
    context.cos, context.sin = (ops.to(table, x.dtype, "rotary table") for table in tables)
    context.ctx.attention_dropout = c.number("attention_dropout", 0.0) if tape.training else 0.0
    return x


def positions(net: Modules, c: Config, padding: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows of both halves of one table, added; zero where `padding` is."""
    net.tape.module = EMBEDDER
    rows, width = c.count("position_embedding_size", 10240), shape[-1]
    table = net.parameter(f"{EMBEDDER}.position_embedding_table", 2, rows, width)
    places = net.tape.empty((*shape[:2], 2), "int64", "places of patches")
    ids = Tensor(net.tape, places.storage, shape[:2], "int64")  # one of both directions
    across = ops.embedding(ids, ops.sliced(table, (rows, width)), "positions across")
    down = ops.embedding(ids, ops.sliced(table, (rows, width)), "positions down")
    both = ops.add(across, down, "positions")
    return ops.masked(both, padding)


def clipped(net: Modules, c: Config, name: str, x: Tensor, width: int) -> Tensor:
    """Gemma4ClippableLinear: a linear layer whose input and output are clamped, if the configuration says so."""
    clips = c.flag("use_clipped_linears", False)
    net.tape.module = name
    x = ops.clamp(x) if clips else x
    x = net.linear(f"{name}.linear", x, width)
    net.tape.module = name
    return ops.clamp(x) if clips else x


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Gemma4VisionEncoderLayer: norms around both branches."""
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, context)
    x = norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "pre_feedforward_layernorm", x)
    x = feed_forward(net, c, x)
    x = norm(net, "post_feedforward_layernorm", x)
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, context: TowerContext) -> tuple[Tensor, ...]:
    """Attention of every patch to every patch of its image; norms on the heads of q, k and v."""
    (images, patches, width), dim = x.shape, c.count("head_dim", 64)
    heads, keys = c.count("num_attention_heads", 12), c.count("num_key_value_heads", 12)

    def projected(name: str, number: int) -> Tensor:
        made = clipped(net, c, f"self_attn.{name}_proj", x, number * dim)
        return made.view(images, patches, number, dim)

    q = projected("q", heads)
    q_first, kv_first = heads_first_grads(q, keys, context.ctx, LayerKind())
    q = norm(net, "self_attn.q_norm", ops.heads_first(q) if q_first else q)
    q = turned(net, q, context)
    k = projected("k", keys)
    k = norm(net, "self_attn.k_norm", ops.heads_first(k) if kv_first else k)
    k = turned(net, k, context)
    v = projected("v", keys)
    v = norm(net, "self_attn.v_norm", ops.heads_first(v) if kv_first else v, scaled=False)
    out, *weights = attend(q, k, v, context.ctx)
    return clipped(net, c, "self_attn.o_proj", out, width), *weights


def turned(net: Modules, x: Tensor, context: TowerContext) -> Tensor:
    """apply_multidimensional_rope: half of each head by its column, half by its row."""
    assert context.cos is not None
    assert context.sin is not None
    net.tape.module = "self_attn"
    half = x.shape[-1] // 2
    parts, cos, sin = (ops.split(one, half, half) for one in (x, context.cos, context.sin))
    by_column, by_row = [rotate(*three) for three in zip(parts, cos, sin, strict=True)]
    return ops.cat(by_column, by_row)


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Gemma4VisionMLP."""
    inner = c.count("intermediate_size", 3072)
    product = ops.mul(
        activation(gemma.act(c))(clipped(net, c, "mlp.gate_proj", x, inner)),
        clipped(net, c, "mlp.up_proj", x, inner),
    )
    return clipped(net, c, "mlp.down_proj", product, x.shape[-1])


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Gemma4VisionPooler: patches averaged in squares by a product with their weights; padding left out."""
    assert context.padding is not None
    tape, dtype, (images, patches, width) = net.tape, x.dtype, x.shape
    net.tower_locals.append(x)
    context.ctx = replace(context.ctx, masks={})  # which ends with Gemma4VisionEncoder.forward
    tape.module = f"{NAME}.pooler"
    squares = c.count("pooling_kernel_size", 3) ** 2
    length, tokens = patches // squares, context.image.rows * context.image.columns // squares
    filled = ops.masked(x, context.padding)
    pooled = averaged(filled, (images, length, width))
    pooled = ops.scale(ops.to(pooled, "fp32"), "scaled features")
    del filled
    x = ops.gathered(pooled, (images * tokens, width), "features without padding")
    del pooled
    if c.flag("standardize", False):
        bias, scale = (ops.to(net.resident((width,), net.training.dtype), "fp32") for _ in range(2))
        x = ops.mul(ops.subtract(x, bias), scale)
    return ops.to(x, dtype, "features")


def averaged(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """_avg_pool_by_positions: each image's patches times one-hot weights, in fp32."""
    tape, (images, patches, width), length = x.tape, x.shape, shape[1]
    counted = tape.empty((images, patches, length), "int64", "one-hot tokens of patches")
    as_floats = tape.empty((images, patches, length), "fp32", "one-hot tokens of patches")
    del counted
    weights = tape.empty((images, patches, length), "fp32", "weights of patches")
    del as_floats
    flops = 2 * images * patches * length * width
    pooled = ops.matmul(weights, ops.to(x, "fp32"), flops, shape, "pooled features")
    return ops.to(pooled, x.dtype, "pooled features")


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Gemma4MultimodalEmbedder for images; that for sound idles, with its tower."""
    wide = whole.part("text_config").count("hidden_size")
    if whole.get("audio_config") is not None:
        audio, idle = whole.part("audio_config"), frozen(net)
        gemma4_audio.hears(idle, audio)
        idle_linear(idle, "embed_audio.embedding_projection", wide, audio.count("output_proj_dims", 1536))
    x = norm(net, "embed_vision.embedding_pre_projection_norm", x, scaled=False)
    x = net.linear("embed_vision.embedding_projection", x, wide)
    return joined(net, ops.pieces(x))


def bounds(whole: Config) -> list[Input]:
    """Numbers that linear layers are clipped to, and those that features are standardized by."""
    c = whole.part("vision_config")
    clips = c.flag("use_clipped_linears", False)
    layers = 7 * c.count("num_hidden_layers", 16) if clips else 0
    if whole.get("audio_config") is not None:
        layers += gemma4_audio.clipped_layers(whole.part("audio_config"))
    standards = ("std_bias", "std_scale") if c.flag("standardize", False) else ()
    width = c.count("hidden_size", 768)
    return [Input(name, (), "bf16") for name in BOUNDS] * layers + [Input(name, (width,), "bf16") for name in standards]


def sees_both_ways(whole: Config, sliding: bool) -> bool:
    """create_masks_for_vision_model: tokens of one image attend to each other, in sliding layers of larger models."""
    return sliding and whole.part("text_config").get("use_bidirectional_attention") == "vision"


TOWERS = {
    "gemma4": VisionTower(
        embed,
        layer,
        project,
        all_alike,
        place=place,
        finish=finish,
        token_types=True,
        fills_cache=False,
        holds_cast=False,
        hooked="nothing",
        masks_text=sees_both_ways,
        buffers=bounds,
        note="sound is not modelled: where there is a tower for it, it is loaded and idle",
    )
}
