"""Voxtral: Whisper's encoder under a Llama (transformers 5.23, modeling_voxtral.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.towers.vit import all_alike
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower
from vramplan.analytic.architectures.whisper import KERNEL, encoder_layer
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config

NAME = "audio_tower"
KEYS = {
    "d_model": ("hidden_size", 1280),
    "encoder_attention_heads": ("num_attention_heads", 20),
    "encoder_ffn_dim": ("intermediate_size", 5120),
    "encoder_layers": ("num_hidden_layers", 32),
}
"""Whisper's names of keys, and Voxtral's with their defaults."""


def as_whisper(c: Config) -> Config:
    """The tower's configuration with Whisper's keys as well."""
    named = {key: c.get(key, c.get(other, usual)) for key, (other, usual) in KEYS.items()}
    named |= {key: c.get(key, 0.0) for key in ("dropout", "attention_dropout", "activation_dropout")}
    return Config({**named, "activation_function": c.text("activation_function", "gelu")}, NAME)


def convolution(net: Modules, name: str, x: Tensor, width: int, frames: int) -> Tensor:
    """``nn.Conv1d`` over three frames."""
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", width, x.shape[1], KERNEL)
    return ops.patches(
        x, weight, net.parameter(f"{name}.bias", width), (x.shape[0], width, frames), transposed=name.endswith("conv2")
    )


def embed(net: Modules, c: Config, image: ProcessedImage, features: Tensor) -> Tensor:
    """The first convolution, whose output the hook takes for embeddings."""
    net.tape.module = "inputs"
    features = ops.to(features, net.training.dtype, "features in the model's dtype")
    return convolution(net, f"{NAME}.conv1", features, as_whisper(c).count("d_model"), features.shape[2])


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The second convolution, which halves the frames, and fixed positions in fp32."""
    own = as_whisper(c)
    width, positions = own.count("d_model"), c.count("max_source_positions", 1500)
    x = ops.gelu(convolution(net, f"{NAME}.conv2", ops.gelu(x), width, positions)).view(x.shape[0], positions, width)
    table = net.parameter(f"{NAME}.embed_positions.weight", positions, width, frozen=True, dtype="fp32")
    net.tape.module = NAME
    dtype = x.dtype
    return ops.dropout(ops.to(ops.add(x, table), dtype), own.number("dropout", 0.0))


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Whisper's layer."""
    return encoder_layer(net, as_whisper(c), x, context.ctx)


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The last norm."""
    return net.layer_norm(f"{NAME}.layer_norm", x)


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Four frames made one token, two layers."""
    inner, wide = as_whisper(whole.part("audio_config")).count("encoder_ffn_dim"), whole.part("text_config")
    x = x.view(x.num_elements // inner, inner)
    x = net.linear("multi_modal_projector.linear_1", x, wide.count("hidden_size"))
    x = activation(whole.text("projector_hidden_act", "gelu"))(x)
    return net.linear("multi_modal_projector.linear_2", x, wide.count("hidden_size"))


def kinds(c: Config) -> list[object]:
    """Every layer does the same."""
    return all_alike(Config({"num_hidden_layers": as_whisper(c).count("encoder_layers")}, NAME))


TOWERS = {
    "voxtral": VisionTower(
        embed,
        layer,
        project,
        kinds,
        part="audio_config",
        place=place,
        finish=finish,
        holds_cast=False,
        wrapped="groups of layers that hear are not modelled",
    )
}
