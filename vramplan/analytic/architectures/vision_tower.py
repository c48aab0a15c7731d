"""The record of a vision tower: patches, layers, the way into the language model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor, leaf
from vramplan.analytic.layer_folding import STACK
from vramplan.analytic.layers.context import Context, CrossAttentionInput
from vramplan.analytic.layers.modules import Modules, WeightConfig
from vramplan.dataclass import dataclass
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

NO_TEXT_TOWER = (
    "accelerate stops: it looks for {}TextEmbeddings, which transformers names for the tower and is not in it"
)
"""`_no_split_modules` of a pair of towers, of which only the vision tower is there."""
MERGES = "merges"
"""The kind of the layer behind which `VisionTower.merge` runs."""
TOWER = STACK
"""Layers of the tower are numbered from here."""
PARTS = (
    *("vision_tower", "visual", "multi_modal_projector", "image_newline", "merger"),
    *("audio_tower", "embed_vision", "embed_audio"),
)
"""First names of the weights that are not the language model's."""


@dataclass(frozen=True, slots=True)
class VisionTower:
    """The record of one vision tower and of its way into the language model."""

    embed: Callable[[Modules, Config, ProcessedImage, Tensor], Tensor]
    """From pixels to patches, to which transformers' hook gives a gradient."""
    layer: Callable[[Modules, Config, Tensor, TowerContext], Tensor]
    project: Callable[[Modules, Config, ProcessedImage, Tensor], Tensor]
    """From the last layer's output to (tokens, width of the language model)."""
    kinds: Callable[[Config], list[Hashable]]
    """The kind of each layer: a value that differs between layers that differ."""
    text_type: str | None = None
    """The language model's architecture; None if the configuration names it (``text_config.model_type``)."""
    place: Callable[[Modules, Config, TowerContext, Tensor], Tensor] | None = None
    """Positions and the like, between patches and layers."""
    token_types: bool = False
    """Whether the processor marks image tokens for the model."""
    finish: Callable[[Modules, Config, TowerContext, Tensor], Tensor] = lambda net, c, context, x: x
    """The rest of the tower, after its layers."""
    chosen: Callable[[Config], tuple[int, ...]] = lambda whole: ()
    """The tower's states that the language model takes, side by side: -1 its last layer's, -2 the layer before ...; its
    output if there are none."""
    fills_cache: bool = True
    """Whether the language model decides on its own cache of keys and values, which only the outer configuration
    switches off."""
    between: Callable[[Modules, Config, Tensor], None] | None = None
    """Makes features for the first layers of the language model of a layer's output (Qwen 3's DeepStack), in
    `net.deep`."""
    merge: Callable[[Modules, Config, TowerContext, Tensor], Tensor] | None = None
    """Makes fewer patches of the output of one layer (MERGES), for those behind it."""
    deep: Callable[[Config], int] = lambda whole: 0
    """The number of these features."""
    hooked: str = "patches"
    """The tensor that transformers takes for the tower's input embeddings, so that a gradient goes through a frozen
    tower: patches, placed (with their positions), or nothing."""
    returns_features: bool = True
    """Whether the features are among the model's outputs."""
    masks_text: Callable[[Config, bool], bool] = lambda whole, sliding: False
    """Whether image tokens attend to each other in both directions, in layers that slide or in the others, so that the
    text always gets a mask."""
    masks_text_alone: bool = False
    """Whether batches of text alone get that mask too."""
    tower_type: str | None = None
    """The tower's own type, if the architecture takes several."""
    of_swift: str = ""
    """What ms-swift 4.6 changes, if compared: embeddings: the patches are the tower's input embeddings; hook: the
    tower also runs in a hook in front of the model, without autocast (template/templates/qwen.py: _post_encode)."""
    drops_empty: bool = False
    """Whether tiles that are all zero are dropped."""
    holds_first: bool = True
    """Whether the first layer's input lives, as a local of the tower's forward, until the tower is done."""
    holds_cast: bool = True
    """Whether the pixels in the model's dtype live until the features are there."""
    checkpoints: bool = True
    """Whether checkpointing reaches the tower's layers."""
    text_only: bool = False
    """Whether only batches of text are modelled, in which the tower is loaded and idle."""
    attention: tuple[str, ...] = ()
    """Attention implementations that transformers offers for the tower, if those are fewer than for the text."""
    casts_pixels: bool = True
    """Whether the model casts pixels to the dtype of its weights."""
    note: str = ""
    """What is assumed of the whole model, which is said beside the verdict."""
    buffers: Callable[[Config], list[Input]] = lambda whole: []
    """Tables besides the weights that lie on the GPU."""
    mixed_in: Callable[[Modules, Config, Tensor, Tensor], Tensor] | None = None
    """What the model makes of the embeddings of all ids, images or not (Gemma 3n)."""
    wrapped: str = ""
    """Why FSDP does not make one group of each layer (accelerate 1.15 wraps the classes in `_no_split_modules`)."""
    loads: tuple[str | int, ...] = ()
    """The order of the whole model's weights, as `Architecture.loads`, if that is not the tower, the projector, the
    text: stack 0 is the tower's, 1 the text's."""
    across: Callable[[Modules, Job, tuple[int, ...], Tensor], CrossAttentionInput] | None = None
    """From the shape of the ids and the features to the input of cross-attention, if features do not go into the text
    (Llama 3.2 Vision)."""
    no_rollouts: str = ""
    """Why no trainer that generates trains it on images."""
    part: str = "vision_config"
    """The part of the configuration that the tower reads."""
    takes_over: tuple[str, ...] = ()
    """Keys of the whole configuration that take the place of the part's."""
    loss: Callable[[Tensor, bool], Tensor] | None = None
    """The loss of logits (B, S, V) and whether there is a mask, if it is the model's own."""

    def config_of(self, whole: Config) -> Config:
        """The tower's configuration."""
        return whole.part(self.part).updated({key: whole.get(key) for key in self.takes_over if whole.has(key)})


@dataclass(slots=True)
class TowerContext:
    """Tensors and settings that all layers of the tower share in one forward."""

    ctx: Context
    image: ProcessedImage
    images: int
    """Images in the micro-batch."""
    kind: Hashable = None
    padding: Tensor | None = None
    """Where patches are padding, (images, patches, 1), if images are padded."""
    cos: Tensor | None = None
    sin: Tensor | None = None


@dataclass(frozen=True, slots=True)
class VisionInput:
    """The vision tower of one model, and one processed image of the job."""

    tower: VisionTower
    config: Config
    """Of the whole model."""
    image: ProcessedImage


def training_of(part: str, given: WeightConfig, job: Job) -> WeightConfig:
    """The weights of a part that is frozen, trained, or adapted."""
    quantize = given.quantize if job.quantize_vision else "none"
    return replace(given, full=part == "train", lora_rank=given.lora_rank if part == "lora" else 0, quantize=quantize)


def idle_linear(net: Modules, name: str, out_features: int, in_features: int, bias: bool = False) -> None:
    """The weights of an ``nn.Linear`` that no batch reaches; quantization packs it like any other."""
    net.parameter(f"{name}.weight", out_features, in_features, quantize=net.training.quantize)
    if bias:
        net.parameter(f"{name}.bias", out_features)


def frozen(net: Modules) -> Modules:
    """The same modules, whose weights neither train nor get adapters."""
    return replace(net, training=replace(net.training, full=False, lora_rank=0))


def in_one_row(pixels: Tensor, dtype: str | None) -> Tensor:
    """The tiles of all images one after another; with a `dtype`, cast first, and those that are all zero left out."""
    if dtype is not None:
        pixels = ops.to(pixels, dtype, "pixels in the model's dtype")
        empty = pixels.tape.empty(pixels.shape, "bool", "pixels that are zero")
        del empty
    pixels = ops.copy(pixels, "tiles of all images")
    return pixels.view(pixels.shape[0] * pixels.shape[1], *pixels.shape[2:])


def joined(net: Modules, x: Tensor) -> Tensor:
    """``torch.cat(features)`` of all images; the outer forward keeps each image's."""
    if not net.joins_images:
        return x
    net.multimodal_locals.append(x)
    net.tape.module = "inputs"
    return ops.copy(x, "features of all images")


def given_a_gradient(x: Tensor, wanted: bool) -> Tensor:
    """`x`, made a leaf if transformers' hook asks for its gradient and nothing else does."""
    return leaf(x) if wanted and x.node is None and x.tape.grad_enabled else x


def layer_context(context: TowerContext, kind: Hashable, job: Job) -> TowerContext:
    """The context of one layer; FSDP2 casts the tables for each group (MixedPrecisionPolicy: cast_forward_inputs)."""
    own = replace(context, kind=kind)
    if job.computed_dtype is not None and job.fsdp.version == 2 and own.cos is not None and own.sin is not None:
        own.cos, own.sin = (
            ops.to(one, job.computed_dtype, "tables in the group's dtype") for one in (own.cos, own.sin)
        )
    return own
