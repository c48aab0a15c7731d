"""Llama 4's tower, by its weights: batches of text leave it idle (transformers 5.23, modeling_llama4.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.towers.vit import all_alike
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, idle_linear
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, width: int) -> None:
    """``nn.LayerNorm``."""
    net.parameter(f"{name}.weight", width)
    net.parameter(f"{name}.bias", width)


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """Llama4VisionModel: patches, one more for the image, positions, two norms."""
    width, patch = c.count("hidden_size", 768), c.count("patch_size", 14)
    places = (c.count("image_size", 448) // patch) ** 2 + 1
    net.parameter("vision_tower.class_embedding", width)
    net.parameter("vision_tower.positional_embedding_vlm", places, width)
    idle_linear(net, "vision_tower.patch_embedding.linear", width, c.count("num_channels", 3) * patch**2)
    for name in ("layernorm_pre", "layernorm_post"):
        norm(net, f"vision_tower.{name}", width)
    return net.tape.empty((1, 1, width), net.training.dtype, "patches")


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """Llama4VisionEncoderLayer."""
    width, inner = c.count("hidden_size", 768), c.count("intermediate_size", 5632)
    for name in "qkvo":
        idle_linear(net, f"self_attn.{name}_proj", width, width, True)
    idle_linear(net, "mlp.fc1", inner, width, True)
    idle_linear(net, "mlp.fc2", width, inner, True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        norm(net, name, width)
    return x


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """The adapter behind the tower, and one layer to the width of the language model."""
    c, wide = whole.part("vision_config"), whole.part("text_config").count("hidden_size", 5120)
    given, made = c.count("projector_input_dim", 4096), c.count("projector_output_dim", 4096)
    idle_linear(net, "vision_tower.vision_adapter.mlp.fc1", given, c.count("intermediate_size", 5632))
    idle_linear(net, "vision_tower.vision_adapter.mlp.fc2", made, made)
    idle_linear(net, "multi_modal_projector.linear_1", wide, c.count("vision_output_dim", 7680))
    return net.tape.empty((1, wide), net.training.dtype, "features")


TOWERS = {"llama4": VisionTower(embed, layer, project, all_alike, fills_cache=False, text_only=True)}
