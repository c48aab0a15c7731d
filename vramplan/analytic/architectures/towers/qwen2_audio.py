"""Qwen2-Audio: Whisper's encoder, whose frames are averaged in pairs (transformers 5.23, modeling_qwen2_audio.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.towers.voxtral import NAME, convolution, embed, kinds, layer
from vramplan.analytic.architectures.vision_tower import TowerContext, VisionTower
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_spec import Config


def place(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """The second convolution, which halves the frames, and fixed positions; a mask if the sound is padded."""
    width, positions = c.count("d_model", 1280), c.count("max_source_positions", 1500)
    sounds, ctx = x.shape[0], context.ctx
    if ctx.attention == "eager" or (ctx.attention == "sdpa" and is_padded(context.image)):
        net.tape.module = "inputs"
        parts = MaskParts(causal=False, padded=True)
        dtype = net.embedded_dtype if ctx.attention == "eager" else "bool"
        ctx.masks[False] = attention_mask(net.tape, sounds, positions, dtype, parts)
    x = ops.gelu(convolution(net, f"{NAME}.conv2", ops.gelu(x), width, positions)).view(sounds, positions, width)
    table = net.parameter(f"{NAME}.embed_positions.weight", positions, width, frozen=True)
    net.tape.module = NAME
    return ops.dropout(ops.add(x, table), c.number("dropout", 0.0))


def is_padded(image: ProcessedImage) -> bool:
    """Whether a sound is shorter than its spectrogram."""
    return image.tokens < image.columns // 2


def finish(net: Modules, c: Config, context: TowerContext, x: Tensor) -> Tensor:
    """Frames averaged in pairs, the last norm."""
    net.tape.module = NAME
    sounds, positions, width = x.shape
    x = ops.average(ops.copy(x, "frames last"), (sounds, positions // 2, width))
    return net.layer_norm(f"{NAME}.layer_norm", ops.copy(x, "frames first"))


def project(net: Modules, whole: Config, image: ProcessedImage, x: Tensor) -> Tensor:
    """One layer; of each sound the frames that are no padding."""
    x = net.linear("multi_modal_projector.linear", x, whole.part("text_config").count("hidden_size", 4096), True)
    net.tape.module = "inputs"
    return ops.gathered(x, (x.shape[0] * image.tokens, x.shape[2]), "features of all sounds")


def loss(logits: Tensor, has_mask: bool) -> Tensor:
    """Cross-entropy of the logits in their own dtype: those of tokens that the mask names, or of all but the last."""
    tape, (batch, length, words) = logits.tape, logits.shape
    count = batch * (length - 1)
    rows = ops.sliced(logits, (batch, length - 1, words))
    if has_mask:
        rows = ops.gathered(rows, (count, words), "logits of tokens that count")
    elif batch > 1:
        rows = ops.copy(rows, "logits of all but the last tokens")
    labels = tape.empty((count,), "int64", "labels of tokens that count")
    return losses.cross_entropy(rows.view(count, words), labels)


TOWERS = {
    "qwen2_audio": VisionTower(
        embed,
        layer,
        project,
        kinds,
        place=place,
        finish=finish,
        holds_cast=False,
        returns_features=False,
        wrapped="groups of layers that hear are not modelled",
        part="audio_config",
        loss=loss,
    )
}
