"""The towers of Gemma 4 for images and sound, by their weights: batches of text load them and leave them idle.

Mirrors transformers 5.23, modeling_gemma4.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.towers.vit import all_alike
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, idle_linear
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config

AUDIO = "audio_tower"


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """Gemma4VisionPatchEmbedder: a projection, and a table of positions for each direction."""
    width, patch = c.count("hidden_size", 768), c.count("patch_size", 16)
    idle_linear(net, "vision_tower.patch_embedder.input_proj", width, 3 * patch**2)
    rows = c.count("position_embedding_size", 10240)
    net.parameter("vision_tower.patch_embedder.position_embedding_table", 2, rows, width)
    return net.tape.empty((1, 1, width), net.training.dtype, "patches")


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Gemma4VisionEncoderLayer."""
    width, inner, dim = c.count("hidden_size", 768), c.count("intermediate_size", 3072), c.count("head_dim", 64)
    heads, keys = c.count("num_attention_heads", 12), c.count("num_key_value_heads", 12)
    for name, outputs in (("q", heads), ("k", keys), ("v", keys)):
        idle_linear(net, f"self_attn.{name}_proj.linear", outputs * dim, width)
    idle_linear(net, "self_attn.o_proj.linear", width, heads * dim)
    for name in ("q_norm", "k_norm"):
        net.parameter(f"self_attn.{name}.weight", dim)
    for name in ("gate_proj", "up_proj"):
        idle_linear(net, f"mlp.{name}.linear", inner, width)
    idle_linear(net, "mlp.down_proj.linear", width, inner)
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        net.parameter(f"{name}_layernorm.weight", width)
    return x


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Gemma4MultimodalEmbedder, for images and for sound."""
    wide, width = whole.part("text_config").count("hidden_size"), x.shape[-1]
    idle_linear(net, "embed_vision.embedding_projection", wide, width)
    if whole.get("audio_config") is not None:
        audio = whole.part("audio_config")
        hears(net, audio)
        idle_linear(net, "embed_audio.embedding_projection", wide, audio.count("output_proj_dims", 1536))
    return net.tape.empty((1, wide), net.training.dtype, "features")


def hears(net: Modules, c: Config) -> None:
    """Gemma4AudioModel: two convolutions, conformer layers, a projection."""
    width, outputs = c.count("hidden_size", 1024), c.count("output_proj_dims", 1536)
    channels = c.get("subsampling_conv_channels", (128, 32))
    given = 1
    for number, made in enumerate(channels):
        name = f"{AUDIO}.subsample_conv_projection.layer{number}"
        net.parameter(f"{name}.conv.weight", made, given, 3, 3)
        net.parameter(f"{name}.norm.weight", made)
        given = made
    idle_linear(net, f"{AUDIO}.subsample_conv_projection.input_proj_linear", width, channels[0] // 4 * channels[1])
    for number in range(c.count("num_hidden_layers", 12)):
        conformer(net, f"{AUDIO}.layers.{number}", width, width // c.count("num_attention_heads", 8), c)
    idle_linear(net, f"{AUDIO}.output_proj", outputs, width, True)


def conformer(net: Modules, name: str, width: int, dim: int, c: Config) -> None:
    """Gemma4AudioLayer: two feed-forwards around attention and a convolution."""
    for part in ("feed_forward1", "feed_forward2"):
        idle_linear(net, f"{name}.{part}.ffw_layer_1.linear", 4 * width, width)
        idle_linear(net, f"{name}.{part}.ffw_layer_2.linear", width, 4 * width)
        net.parameter(f"{name}.{part}.pre_layer_norm.weight", width)
        net.parameter(f"{name}.{part}.post_layer_norm.weight", width)
    for part in ("q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear", "relative_k_proj"):
        idle_linear(net, f"{name}.self_attn.{part}", width, width)
    net.parameter(f"{name}.self_attn.per_dim_scale", dim)
    idle_linear(net, f"{name}.lconv1d.linear_start.linear", 2 * width, width)
    idle_linear(net, f"{name}.lconv1d.linear_end.linear", width, width)
    net.parameter(f"{name}.lconv1d.depthwise_conv1d.weight", width, 1, c.count("conv_kernel_size", 5))
    for part in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        net.parameter(f"{name}.{part}.weight", width)


TOWERS = {"gemma4": VisionTower(embed, layer, project, all_alike, token_types=True, fills_cache=False, text_only=True)}
