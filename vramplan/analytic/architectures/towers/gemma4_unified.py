"""Gemma 4 without encoders (12B): patches and sound are projected straight into the language model.

Batches of text load both projections and leave them idle. Mirrors transformers 5.23, modeling_gemma4_unified.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower, idle_linear
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def embed(net: Modules, c: Config, image: ProcessedImage, pixels: Tensor) -> Tensor:
    """Gemma4UnifiedVisionEmbedder, but for its projection."""
    side, width = c.count("patch_size", 16) * c.count("pooling_kernel_size", 3), c.count("mm_embed_dim", 3840)
    norm(net, "patch_ln1", 3 * side**2)
    idle_linear(net, "embed_vision.patch_dense", width, 3 * side**2, True)
    norm(net, "patch_ln2", width)
    net.parameter("embed_vision.pos_embedding", c.count("mm_posemb_size", 1120), 2, width)
    norm(net, "pos_norm", width)
    return net.tape.empty((1, 1, width), net.training.dtype, "patches")


def norm(net: Modules, name: str, width: int) -> None:
    """The weights of an ``nn.LayerNorm``."""
    for part in ("weight", "bias"):
        net.parameter(f"embed_vision.{name}.{part}", width)


def layer(net: Modules, c: Config, x: Tensor, context: TowerContext) -> Tensor:
    """There is none."""
    return x


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """Gemma4UnifiedMultimodalEmbedder for images and for sound."""
    wide = whole.part("text_config").count("hidden_size")
    seen = whole.part("vision_config").count("output_proj_dims", 3840)
    idle_linear(net, "embed_vision.multimodal_embedder.embedding_projection", wide, seen)
    if whole.get("audio_config") is not None:
        heard = whole.part("audio_config").count("audio_embed_dim", 640)
        idle_linear(net, "embed_audio.embedding_projection", wide, heard)
    return net.tape.empty((1, wide), net.training.dtype, "features")


def sees_both_ways(whole: Config, sliding: bool) -> bool:
    """Gemma4UnifiedModel.forward: tokens of one image attend to each other."""
    return bool(whole.part("text_config").get("use_bidirectional_attention", "vision") == "vision")


TOWERS = {
    "gemma4_unified": VisionTower(
        embed,
        layer,
        project,
        lambda c: [],
        token_types=True,
        fills_cache=False,
        masks_text=sees_both_ways,
        masks_text_alone=True,
        text_only=True,
    )
}
