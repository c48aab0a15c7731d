"""The tower of Gemma 4 for sound, by its weights: it is loaded and idle (transformers 5.23, modeling_gemma4.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.vision_tower import idle_linear
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config

AUDIO = "audio_tower"
CLIPPED = 10
"""Linear layers of a conformer whose inputs and outputs are clipped."""


def clipped_layers(c: Config) -> int:
    """Number of the tower's linear layers with bounds beside their weight."""
    return CLIPPED * c.count("num_hidden_layers", 12) if c.flag("use_clipped_linears", True) else 0


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
