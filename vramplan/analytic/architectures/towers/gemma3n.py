"""The towers of Gemma 3n for images and sound, by their weights, and its way through the embeddings of text.

Batches of text load the towers and leave them idle, but embed every token as an image's and as sound's as well.
Mirrors transformers 5.23, modeling_gemma3n.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.gemma4 import norm
from vramplan.analytic.architectures.towers import mobilenet5
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, idle_linear
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import UnsupportedError
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config

AUDIO = "audio_tower"
ROWS = 128
"""Tokens of each kind that have an embedding."""


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """TimmWrapperModel."""
    name = c.text("architecture", "mobilenetv5_300m_enc")
    if name != "mobilenetv5_300m_enc":
        raise UnsupportedError(f"a vision tower of timm's architecture {name!r} is not supported")
    mobilenet5.declare(net)
    return net.tape.empty((1, 1, mobilenet5.FUSED), net.training.dtype, "patches")


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """There is none: the tower is one module."""
    return x


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Gemma3nMultimodalEmbedder for images and for sound, and the tower for sound."""
    wide = whole.part("text_config").count("hidden_size", 2048)
    hears(net, whole.part("audio_config"))
    for name, width in widths(whole).items():
        net.parameter(f"{name}.embedding.weight", rows(whole, name), width)
        for kind in ("hard", "soft"):
            net.parameter(f"{name}.{kind}_embedding_norm.weight", width)
        idle_linear(net, f"{name}.embedding_projection", wide, width)
    return net.tape.empty((1, wide), net.training.dtype, "features")


def widths(whole: Config) -> dict[str, int]:
    """Width of what each embedder takes."""
    return {
        "embed_vision": whole.part("vision_config").count("hidden_size", 2048),
        "embed_audio": whole.part("audio_config").count("hidden_size", 1536),
    }


def rows(whole: Config, name: str) -> int:
    """Tokens of a kind."""
    return whole.part(f"{name.removeprefix('embed_')}_config").count("vocab_size", ROWS)


def mixed_in(net: Modules, whole: Config, ids: Tensor, x: Tensor) -> Tensor:
    """Gemma3nModel.forward: every token as one of an image and of sound, of which text takes neither."""
    tape = net.tape
    for name, width in widths(whole).items():
        bounds = [tape.empty(ids.shape, "bool", "where images and sound are") for _ in range(2)]
        mask = tape.empty(ids.shape, "bool", "where images and sound are") if name == "embed_vision" else bounds.pop()
        del bounds
        chosen = tape.empty(ids.shape, "int64", "ids of images or sound")
        embedded = hard_embedding(net, name, chosen, rows(whole, name), width, x.shape[-1])
        embedded = ops.to(embedded, x.dtype)
        x = ops.where(mask, embedded, x)
        net.multimodal_locals += [mask, chosen, embedded]
        del embedded
    return x


def hard_embedding(net: Modules, name: str, ids: Tensor, number: int, width: int, wide: int) -> Tensor:
    """Gemma3nMultimodalEmbedder.forward of ids."""
    shifted = net.tape.empty(ids.shape, "int64", "ids from 0")
    embedded = ops.embedding(shifted, net.parameter(f"{name}.embedding.weight", number, width))
    del shifted
    normed = norm(net, f"{name}.hard_embedding_norm", embedded)
    projected = net.linear(f"{name}.embedding_projection", normed, wide)
    return norm(net, f"{name}.embedding_post_projection_norm", projected, scaled=False)


def hears(net: Modules, c: Config) -> None:
    """Gemma3nAudioEncoder: two convolutions, conformer layers."""
    width, channels, frequencies = c.count("hidden_size", 1536), (1,), c.count("input_feat_size", 128)
    kernels = c.get("sscp_conv_kernel_size", ((3, 3), (3, 3)))
    strides = c.get("sscp_conv_stride_size", ((2, 2), (2, 2)))
    channels += tuple(c.get("sscp_conv_channel_size", (128, 32)))
    for number, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        name, made = f"{AUDIO}.subsample_conv_projection.conv_{number}", channels[number + 1]
        net.parameter(f"{name}.conv.weight", made, channels[number], *kernel)
        net.parameter(f"{name}.norm.weight", made)
        frequencies = (frequencies + 2 - kernel[1]) // stride[1] + 1
    idle_linear(net, f"{AUDIO}.subsample_conv_projection.input_proj_linear", width, channels[-1] * frequencies)
    for number in range(c.count("conf_num_hidden_layers", 12)):
        conformer(net, f"{AUDIO}.conformer.{number}", width, c)


def conformer(net: Modules, name: str, width: int, c: Config) -> None:
    """Gemma3nAudioConformerBlock: two feed-forwards around attention and a convolution."""
    for part in ("ffw_layer_start", "ffw_layer_end"):
        idle_linear(net, f"{name}.{part}.ffw_layer_1", 4 * width, width)
        idle_linear(net, f"{name}.{part}.ffw_layer_2", width, 4 * width)
        for kind in ("pre", "post"):
            net.parameter(f"{name}.{part}.{kind}_layer_norm.weight", width)
    for part in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.relative_position_embedding.pos_proj", "post"):
        idle_linear(net, f"{name}.attention.{part}", width, width)
    net.parameter(f"{name}.attention.attn.per_dim_scale", width // c.count("conf_num_attention_heads", 8))
    idle_linear(net, f"{name}.lconv1d.linear_start", 2 * width, width)
    idle_linear(net, f"{name}.lconv1d.linear_end", width, width)
    net.parameter(f"{name}.lconv1d.depthwise_conv1d.weight", width, 1, c.count("conf_conv_kernel_size", 5))
    for part in ("attention.pre_attn_norm", "attention.post_norm", "lconv1d.pre_layer_norm", "lconv1d.conv_norm"):
        net.parameter(f"{name}.{part}.weight", width)
    net.parameter(f"{name}.norm.weight", width)


TOWERS = {
    "gemma3n": VisionTower(
        embed,
        layer,
        project,
        lambda c: [],
        token_types=True,
        text_only=True,
        attention=("sdpa", "eager"),  # TimmWrapperModel takes no flash_attention_2
        mixed_in=mixed_in,
    )
}
