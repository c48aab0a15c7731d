"""CLIP: texts and images matched within the batch (transformers 5.23, modeling_clip.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.towers.vit import clip_block, patches, table_of, with_class
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.architectures.vit import interpolated
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input, grid, interpolates
from vramplan.inputs.model_spec import Config

VISION, TEXT = 0, 1
"""Stacks of layers, in the order that they run."""


def shape(c: Config) -> Shape:
    """The text's width and words."""
    text = c.part("text_config")
    layers = text.count("num_hidden_layers", 12) + c.part("vision_config").count("num_hidden_layers", 12)
    return Shape(layers, text.count("hidden_size", 512), text.count("vocab_size", 49408), None)


def stacks(c: Config) -> list[list[object]]:
    """The image's layers and the text's."""
    return alike(*(c.part(f"{name}_config").count("num_hidden_layers", 12) for name in ("vision", "text")))


def contrast(forward: ForwardPass, c: Config) -> ModelOutput:
    """CLIPModel: both towers, their projections normalised, every text with every image."""
    net, size = forward.net, c.count("projection_dim", 512)
    image_states, image = projected(net, "visual_projection", vision(forward, c.part("vision_config")), size)
    text_states, text = projected(net, "text_projection", texts(forward, c.part("text_config")), size)
    net.tape.module = "loss"
    images, words = (normalised(one) for one in (image, text))
    scores = similarity(net, words, images)
    net.tape.module = "loss"
    loss = both_ways(scores)
    return ModelOutput(loss, [scores, scores, words, images, text_states, text, image_states, image])


def projected(net: Modules, name: str, states: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
    """A tower's last states, and the pooled one in the space that both share."""
    hidden, pooled = states
    return hidden, net.linear(name, pooled, size)


def vision(forward: ForwardPass, c: Config) -> tuple[Tensor, Tensor]:
    """CLIPVisionModel: the first layer's input lives to its end; the class token's state is normed."""
    net = forward.net
    x = embed_image(forward, c)
    x = net.layer_norm("vision_model.pre_layrnorm", x)
    ctx = forward.context(None, c.number("attention_dropout", 0.0))
    act = c.text("hidden_act", "quick_gelu")
    hidden = forward.layers(VISION, x, lambda x: clip_block(net, c, x, ctx, act))
    pooled = ops.rows(hidden, 1).view(hidden.shape[0], hidden.shape[2])
    return hidden, net.layer_norm("vision_model.post_layernorm", pooled)


def embed_image(forward: ForwardPass, c: Config) -> Tensor:
    """Patches, the class token before them, positions."""
    net, name = forward.net, "vision_model.embeddings"
    x = image_patches(forward, c, bias=False)
    width, side = x.shape[2], c.count("image_size", 224) // c.count("patch_size")
    net.tape.module = name
    given = x
    x = with_class(net, f"{name}.class_embedding", given, width, width)
    if not interpolates(c, forward.job):
        return ops.add(x, table_of(net, f"{name}.position_embedding.weight", x.shape[1], width))
    table = net.parameter(f"{name}.position_embedding.weight", side * side + 1, width).view(1, side * side + 1, width)
    return ops.add(x, interpolated(table, side, grid(c, forward.job)))


def image_patches(forward: ForwardPass, c: Config, bias: bool) -> Tensor:
    """The patches of the batch's images, to which transformers' hook gives a gradient."""
    net = forward.net
    net.tape.module = "vision_model.embeddings"
    pixels = ops.to(forward.inputs["pixel_values"], net.training.dtype, "pixels in the model's dtype")
    name = "vision_model.embeddings.patch_embedding"
    x = patches(net, name, pixels, c, grid(c, forward.job), bias, c.count("patch_size"))
    return given_a_gradient(x, net.training.input_needs_grad)


def texts(forward: ForwardPass, c: Config) -> tuple[Tensor, Tensor]:
    """CLIPTextModel: causal; the state at each text's end is picked."""
    net = forward.net
    x = embed_text(forward, c)
    ctx = forward.context(forward.causal(x), c.number("attention_dropout", 0.0))
    act = c.text("hidden_act", "quick_gelu")
    hidden = forward.layers(TEXT, x, lambda x: clip_block(net, c, x, ctx, act))
    hidden = net.layer_norm("text_model.final_layer_norm", hidden)
    net.tape.module = "text_model"
    samples, _, width = hidden.shape
    return hidden, ops.gathered(hidden, (samples, width), "states at the ends of the texts")


def embed_text(forward: ForwardPass, c: Config, vocabulary: int = 49408, positions: int = 77) -> Tensor:
    """Words and positions; transformers' own counts of both if the configuration leaves them out."""
    net, ids, width = forward.net, forward.inputs["input_ids"], c.count("hidden_size")
    words = net.embedding("text_model.embeddings.token_embedding", ids, c.count("vocab_size", vocabulary), width)
    where = net.resident((1, ids.shape[1]), "int64")
    positions = c.count("max_position_embeddings", positions)
    return ops.add(words, net.embedding("text_model.embeddings.position_embedding", where, positions, width))


def normalised(x: Tensor) -> Tensor:
    """``x / x.norm(dim=-1)``, written out: square, sum, root, quotient."""
    length = ops.root(ops.total(ops.square(x)))
    return ops.mul(x, length, "normalised")


def similarity(net: Modules, words: Tensor, images: Tensor) -> Tensor:
    """Every text with every image, times a learned number."""
    samples, width = words.shape
    scores = ops.matmul(words, images, 2 * samples * samples * width, (samples, samples), "similarities")
    net.tape.module = ""
    return ops.mul(scores, ops.exp(net.parameter("logit_scale")), "scaled similarities")


def both_ways(scores: Tensor) -> Tensor:
    """image_text_contrastive_loss: which image goes with a text, which text goes with an image."""
    tape, samples = scores.tape, scores.shape[0]
    first = losses.cross_entropy(scores, tape.empty((samples,), "int64", "labels"))
    second = losses.cross_entropy(scores, tape.empty((samples,), "int64", "labels"))
    return ops.scale(ops.add(first, second), "loss")


def tables(c: Config) -> list[Input]:
    """Positions of both."""
    image, text = c.part("vision_config"), c.part("text_config")
    side = image.count("image_size", 224) // image.count("patch_size")
    return [
        Input("position_ids of patches", (1, side * side + 1)),
        Input("position_ids", (1, text.count("max_position_embeddings", 77))),
    ]


LOADS = (
    "logit",
    "text_model.embeddings",
    TEXT,
    "text_model",
    "vision_model.embeddings",
    "vision_model.pre_layrnorm",
    VISION,
    "vision_model",
)
ARCHITECTURES = {
    "clip": Architecture(
        contrast,
        stacks=stacks,
        shape=shape,
        buffers=tables,
        loads=LOADS,
        zero3_stops="DeepSpeed 0.19 stops at logit_scale, which has no dimension (partition_parameters.py:"
        " _zero_init_param)",
    )
}
