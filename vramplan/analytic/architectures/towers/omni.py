"""The Thinkers of Qwen2.5-Omni and Qwen3-Omni: the towers of Qwen2.5-VL and Qwen3-VL, and one for sound that idles.

Mirrors transformers 5.23, modeling_qwen2_5_omni.py and modeling_qwen3_omni_moe.py.
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.decoder import rms_norm
from vramplan.analytic.architectures.towers import qwen
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, frozen, idle_linear, joined
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

AUDIO = "audio_tower"
FRAMES, FREQUENCIES = 1500, 128
"""Positions of sound, and the frequencies of each."""


# -- Qwen2.5-Omni ------------------------------------------------------------------------------------------------------


def qwen2_5_layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """As in Qwen2.5-VL, with a linear layer each for queries, keys and values."""
    pieces = qwen.whole_images(context) if context.kind else qwen.windows(c, context)
    act = c.text("hidden_act", "silu")
    return qwen.block(net, c, x, context, pieces, rms_norm, lambda y: gated_mlp(net, c, y, act, True), apart=True)


def qwen2_5_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Qwen2.5-VL's merger, and the tower for sound."""
    c, features = whole.part("audio_config"), qwen.qwen2_5_project(net, whole, image, x)
    net = frozen(net)
    width, frequencies, made = c.count("d_model", 1280), c.count("num_mel_bins", FREQUENCIES), c.count("output_dim")
    for name, shape in (("conv1", (width, frequencies, 3)), ("conv2", (width, width, 3))):
        net.parameter(f"{AUDIO}.{name}.weight", *shape)
        net.parameter(f"{AUDIO}.{name}.bias", width)
    net.parameter(f"{AUDIO}.audio_bos_eos_token.weight", 2, made)
    encoder(net, c, width, key_bias=False)
    idle_linear(net, f"{AUDIO}.proj", made, width, True)
    return features


# -- Qwen3-Omni --------------------------------------------------------------------------------------------------------


def merged(net: Modules, c: Config, x: Tensor, name: str, norm_last: bool) -> Tensor:
    """Norm before or behind the merge of four neighbours, two layers."""
    wide = qwen.width_of(c) * c.count("spatial_merge_size", 2) ** 2
    shape = (x.num_elements // wide, wide)
    x = net.layer_norm(f"{name}.ln_q", x.view(*shape)) if norm_last else net.layer_norm(f"{name}.ln_q", x).view(*shape)
    x = net.linear(f"{name}.mlp.0", x, wide, True)
    x = ops.gelu(x)
    return net.linear(f"{name}.mlp.2", x, c.count("out_hidden_size"), True)


def qwen3_between(net: Modules, c: Config, x: Tensor) -> None:
    """DeepStack: some layers' outputs are merged as well."""
    net.tape.enter(net.tape.phase, None)
    net.deep.append(merged(net, c, x, f"visual.merger_list.{len(net.deep)}", True))


def qwen3_project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """The merger, and the tower for sound."""
    features = joined(net, ops.pieces(merged(net, whole.part("vision_config"), x, "visual.merger", False)))
    c, net = whole.part("audio_config"), frozen(net)
    width, channels = c.count("d_model", 1280), c.count("downsample_hidden_size", 480)
    frequencies = c.count("num_mel_bins", FREQUENCIES)
    for number, given in enumerate((1, channels, channels), 1):
        net.parameter(f"{AUDIO}.conv2d{number}.weight", channels, given, 3, 3)
        net.parameter(f"{AUDIO}.conv2d{number}.bias", channels)
        frequencies = (frequencies + 1) // 2
    encoder(net, c, width, key_bias=True)
    idle_linear(net, f"{AUDIO}.conv_out", width, channels * frequencies)
    idle_linear(net, f"{AUDIO}.proj1", width, width, True)
    idle_linear(net, f"{AUDIO}.proj2", c.count("output_dim"), width, True)
    return features


# -- sound -------------------------------------------------------------------------------------------------------------


def encoder(net: Modules, c: Config, width: int, key_bias: bool) -> None:
    """The layers of the tower for sound, which are Whisper's, and its last norm."""
    inner = c.count("encoder_ffn_dim", 5120)
    for number in range(c.count("encoder_layers", 32)):
        name = f"{AUDIO}.layers.{number}"
        for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
            idle_linear(net, f"{name}.self_attn.{part}", width, width, part != "k_proj" or key_bias)
        idle_linear(net, f"{name}.fc1", inner, width, True)
        idle_linear(net, f"{name}.fc2", width, inner, True)
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            norm(net, f"{name}.{part}", width)
    norm(net, f"{AUDIO}.ln_post", width)


def norm(net: Modules, name: str, width: int) -> None:
    """``nn.LayerNorm``."""
    net.parameter(f"{name}.weight", width)
    net.parameter(f"{name}.bias", width)


def positions(whole: Config) -> list[Input]:
    """SinusoidsPositionEmbedding: a table that is made, not loaded."""
    c = whole.part("audio_config")
    return [Input("positional_embedding", (c.count("max_source_positions", FRAMES), c.count("d_model", 1280)), "fp32")]


ALONE = (
    "the Thinker alone is loaded and trained: a talker and a vocoder beside it (ms-swift loads them) are not counted"
)
STOPS = "; PEFT 0.21 stops at this model's all-linear: name the layers, or their pattern as ms-swift does"


def thinker(tower: VisionTower, stops: str = "") -> VisionTower:
    """A tower of Qwen-VL in a Thinker, whose processor does not mark image tokens."""
    return replace(tower, token_types=False, buffers=positions, note=f"{ALONE}{stops}; sound is not modelled")


TOWERS = {
    "qwen2_5_omni_thinker": replace(thinker(qwen.TOWERS["qwen2_5_vl"]), layer=qwen2_5_layer, project=qwen2_5_project),
    "qwen3_omni_moe_thinker": replace(
        thinker(qwen.TOWERS["qwen3_vl_moe"], STOPS), project=qwen3_project, between=qwen3_between
    ),
}
