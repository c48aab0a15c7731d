"""Llama 4's tower: square tiles, rotation in complex numbers, four patches made one by pixel shuffle.

Mirrors transformers 5.23, modeling_llama4.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.towers.vit import all_alike, with_class
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Resident, Tensor
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

NAME = "vision_tower"


def places(c: Config) -> int:
    """Patches of a tile, and one more for the whole of it."""
    return (c.count("image_size", 448) // c.count("patch_size", 14)) ** 2 + 1


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """Llama4UnfoldConvolution: patches copied out of the pixels, and a linear layer."""
    net.tape.module = f"{NAME}.patch_embedding"
    tiles, channels = pixels.shape[:2]
    shape = (tiles, places(c) - 1, channels * c.count("patch_size", 14) ** 2)
    unfolded = net.tape.empty(shape, pixels.dtype, "patches")
    return net.linear(f"{NAME}.patch_embedding.linear", unfolded, c.count("hidden_size", 768))


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The class token, a learned position for each, a norm."""
    width = x.shape[-1]
    net.tape.module = NAME
    x = with_class(net, f"{NAME}.class_embedding", x, width, width)
    x = ops.add(x, net.parameter(f"{NAME}.positional_embedding_vlm", places(c), width))
    x = net.layer_norm(f"{NAME}.layernorm_pre", x)
    dim = width // c.count("num_attention_heads", 16)
    context.cos = Tensor(net.tape, Resident(), (1, places(c), 1, dim), "fp32")
    return x


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.layer_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, context)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("post_attention_layernorm", x)
    x = plain_mlp(net, x, "mlp.fc1", "mlp.fc2", c.count("intermediate_size", 5632), "gelu")
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, context: TowerContext) -> tuple[Tensor, ...]:
    """Attention of every patch to every patch of its tile, and the attention weights that the layer holds."""
    (tiles, patches, width), heads = x.shape, c.count("num_attention_heads", 16)
    shape = (tiles, patches, heads, width // heads)
    q, k, v = (net.linear(f"self_attn.{name}_proj", x, width, True).view(*shape) for name in "qkv")
    q_first, kv_first = heads_first_grads(q, heads, context.ctx, LayerKind())
    q = ops.heads_first(q) if q_first else q
    k, v = (ops.heads_first(k), ops.heads_first(v)) if kv_first else (k, v)
    net.tape.module = "self_attn"
    q, k = rotated(q, k, context)
    out, *weights = attend(q, k, v, context.ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("self_attn.o_proj", out, width, True), *weights


def rotated(q: Tensor, k: Tensor, context: TowerContext) -> tuple[Tensor, Tensor]:
    """vision_apply_rotary_emb: in fp32, pairs as complex numbers."""
    assert context.cos is not None
    dtype, q, k = q.dtype, ops.to(q, "fp32"), ops.to(k, "fp32")
    q_out = ops.mul(q, context.cos, "rotated in fp32")
    k_out = ops.mul(k, context.cos, "rotated in fp32")
    return ops.to(q_out, dtype, "rotated"), ops.to(k_out, dtype, "rotated")


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """A norm, the class token dropped, four patches made one, two layers."""
    net.tower_locals.append(x)
    x = net.layer_norm(f"{NAME}.layernorm_post", x)
    tiles, patches, _ = x.shape
    x = ops.rows(x, patches - 1)
    net.tape.module = "pixel shuffle"
    x = ops.copy(x, "shuffled patches")
    x = ops.copy(x, "shuffled patches")
    shrink = round(1 / c.number("pixel_shuffle_ratio", 0.5)) ** 2
    tokens, made = (patches - 1) // shrink, c.count("projector_output_dim", 4096)
    x = x.view(tiles, tokens, c.count("intermediate_size", 5632))  # which is `shrink` times the width
    x = ops.gelu(net.linear(f"{NAME}.vision_adapter.mlp.fc1", x, c.count("projector_input_dim", 4096)))
    x = ops.dropout(x, c.number("projector_dropout", 0.0)).view(tiles, tokens, made)  # as wide as it was
    return ops.gelu(net.linear(f"{NAME}.vision_adapter.mlp.fc2", x, made))


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """One layer; the model returns what it takes."""
    net.features.append(x)
    wide = whole.part("text_config").count("hidden_size", 5120)
    rows = x.view(x.num_elements // x.shape[-1], whole.part("vision_config").count("vision_output_dim", 7680))
    return net.linear("multi_modal_projector.linear_1", rows, wide)


def frequencies(whole: Config) -> list[Input]:
    """Llama4VisionRotaryEmbedding: complex numbers that are made, not loaded."""
    c = whole.part("vision_config")
    dim = c.count("hidden_size", 768) // c.count("num_attention_heads", 16)
    return [Input("freqs_ci", (places(c), dim), "fp32")]


TOWERS = {
    "llama4": VisionTower(
        embed,
        layer,
        project,
        all_alike,
        place=place,
        finish=finish,
        fills_cache=False,
        returns_features=False,
        holds_cast=False,
        casts_pixels=False,
        buffers=frequencies,
    )
}
