"""What one sample is to models that are no causal language models: text to fill in, images, pairs, speech.

The same answer for the analytic tape and for the trace: which class of transformers is trained, what its inputs are,
what ``--seq-len``, ``--target-len`` and ``--image-size`` mean for it (transformers 5.23, modeling_<type>.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.images.types import Tensor as ImageTensor
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config, ModelSpec


class Input(NamedTuple):
    """An input of the model; `shape` is that of one sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "int64"
    stacked: bool = True
    """Whether a batch has a dimension more; otherwise samples lie one after another along the first dimension."""

    @property
    def num_elements(self) -> int:
        """Elements in one sample."""
        return prod(self.shape)

    def batched(self, samples: int) -> tuple[int, ...]:
        """Shape of a batch."""
        return (samples, *self.shape) if self.stacked else (samples * self.shape[0], *self.shape[1:])


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """How one architecture is trained, and on what."""

    trains: str
    """transformers' class that is trained."""
    inputs: Callable[[Config, Job], list[Input]]
    most_tokens: Callable[[Config], int | None] = lambda c: None
    """Tokens that the table of positions allows; None where there is none."""
    reads: bool = True
    """Whether --seq-len means something."""
    sees: str | None = None
    """Where the configuration says how large images are: "" for the configuration itself, None for no images."""
    writes: bool = False
    """Whether --target-len means something: the decoder's labels."""
    arguments: Mapping[str, bool] = field(default_factory=dict)
    """What the class is called with besides tensors."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Numbers of tokens that the class asks for where a configuration leaves them out; any will do."""

    def image(self, c: Config, job: Job) -> tuple[int, int]:
        """Width and height of the images that reach the model."""
        return job.image_size or (own_size(self.vision(c)),) * 2

    def vision(self, c: Config) -> Config:
        """The configuration of what sees."""
        return c.part(self.sees) if self.sees else c

    def called_with(self, c: Config, job: Job) -> dict[str, bool]:
        """All that the class is called with besides tensors: another size of image than its own is asked for."""
        more = dict(self.arguments)
        if self.sees is not None and interpolates(self.vision(c), job):
            more["interpolate_pos_encoding"] = True
        return more

    def patches(self, c: Config, job: Job) -> tuple[int, int]:
        """Rows and columns of patches of an image."""
        return grid(self.vision(c), job)


def own_size(vision: Config) -> int:
    """Pixels of a side of the images that the model was made for."""
    return vision.count("image_size", 224)


def grid(vision: Config, job: Job) -> tuple[int, int]:
    """Rows and columns of patches of an image; a rest at its edge is left out (nn.Conv2d without padding)."""
    width, height = job.image_size or (own_size(vision),) * 2
    patch = vision.count("patch_size")
    return height // patch, width // patch


def interpolates(vision: Config, job: Job) -> bool:
    """Whether images have another size than the model's own."""
    return job.image_size not in (None, (own_size(vision),) * 2)


# -- inputs ------------------------------------------------------------------------------------------------------------


def with_mask(job: Job, length: int) -> list[Input]:
    """A tokenizer's attention mask: the Trainer's batches have it, a plain loop's only where samples are padded."""
    return [Input("attention_mask", (length,))] if job.batches == "padded" or job.loop == "trainer" else []


def text_inputs(job: Job, image: Sequence[ImageTensor] = (), token_types: bool = False) -> list[Input]:
    """Text for a causal language model; the tensors that its processor makes of the sample's images come behind.

    `token_types`: the processor marks image tokens for the model.
    """
    length, pictures = job.sequence_length, job.pictures if image else 0
    names = ["input_ids", "labels"]
    if job.batches == "packed":
        names.append("position_ids")
    elif job.batches == "padded" or job.loop == "trainer" or pictures:
        names.append("attention_mask")
    if pictures and token_types:
        names.append("token_type_ids")
    inputs = [Input(name, (length,)) for name in names]
    for one in image if pictures else ():
        stacked = one.layout != "rows"
        inputs.append(Input(one.name, one.batched(1, pictures, length)[int(stacked) :], one.dtype, stacked))
    return inputs


def masked_text(c: Config, job: Job) -> list[Input]:
    """Text with words to fill in; a label for each token."""
    length = job.sequence_length
    return [Input("input_ids", (length,)), Input("labels", (length,)), *with_mask(job, length)]


def masked_text_and_mask(c: Config, job: Job) -> list[Input]:
    """The same, always with its tokenizer's mask: without one DeBERTa looks for padding in the ids."""
    length = job.sequence_length
    return [Input(name, (length,)) for name in ("input_ids", "labels", "attention_mask")]


def classed_image(c: Config, job: Job) -> list[Input]:
    """An image and its class."""
    return [Input("pixel_values", pixels(MODEL_INPUTS["vit"], c, job), "fp32"), Input("labels", ())]


def clip_pair(c: Config, job: Job) -> list[Input]:
    """A text with its mask and its image."""
    length = job.sequence_length
    image = Input("pixel_values", pixels(MODEL_INPUTS["clip"], c, job), "fp32")
    return [Input("input_ids", (length,)), image, *with_mask(job, length)]


def siglip_pair(c: Config, job: Job) -> list[Input]:
    """A text, filled up to its length and without a mask (SiglipTokenizer: model_input_names), and its image."""
    image = Input("pixel_values", pixels(MODEL_INPUTS["siglip"], c, job), "fp32")
    return [Input("input_ids", (job.sequence_length,)), image]


def text_to_text(c: Config, job: Job) -> list[Input]:
    """A text and the text to write."""
    length = job.sequence_length
    return [Input("input_ids", (length,)), Input("labels", (target_length(job),)), *with_mask(job, length)]


def speech(c: Config, job: Job) -> list[Input]:
    """Thirty seconds of sound, always, as a spectrogram of two frames a position, and the text to write."""
    frames = 2 * c.count("max_source_positions", 1500)
    dtype = job.dtype if job.autocast == "none" else "fp32"  # a convolution without autocast takes no other
    return [
        Input("input_features", (c.count("num_mel_bins", 80), frames), dtype),
        Input("labels", (job.sequence_length,)),
    ]


def pixels(feed: ModelInputs, c: Config, job: Job) -> tuple[int, int, int]:
    """Channels, height, width."""
    width, height = feed.image(c, job)
    return feed.vision(c).count("num_channels", 3), height, width


USUAL_TARGET = 128
"""Tokens of a decoder's labels where nothing is said, or as many as the text has where that is shorter."""


def target_length(job: Job) -> int:
    """Tokens of the labels that a decoder beside an encoder writes."""
    return job.target_length or min(USUAL_TARGET, job.sequence_length)


# -- architectures -----------------------------------------------------------------------------------------------------


def table(c: Config) -> int | None:
    """A table of positions from the first to the last."""
    return c.count("max_position_embeddings", 512)


def table_behind_padding(c: Config) -> int | None:
    """RoBERTa counts positions from behind the padding token's number."""
    return c.count("max_position_embeddings", 512) - int(c.number("pad_token_id", 1)) - 1


def deberta_table(c: Config) -> int | None:
    """DeBERTa-v3 knows positions only relative to each other."""
    return c.count("max_position_embeddings", 512) if c.flag("position_biased_input", True) else None


def text_table(most: int) -> Callable[[Config], int | None]:
    """The text's table in a pair; `most` is transformers' default."""
    return lambda c: c.part("text_config").count("max_position_embeddings", most)


MODEL_INPUTS: dict[str, ModelInputs] = {
    "bert": ModelInputs("BertForMaskedLM", masked_text, table),
    "roberta": ModelInputs("RobertaForMaskedLM", masked_text, table_behind_padding),
    "xlm-roberta": ModelInputs("XLMRobertaForMaskedLM", masked_text, table_behind_padding),
    "modernbert": ModelInputs("ModernBertForMaskedLM", masked_text),
    "deberta-v2": ModelInputs("DebertaV2ForMaskedLM", masked_text_and_mask, deberta_table),
    "vit": ModelInputs("ViTForImageClassification", classed_image, reads=False, sees=""),
    "clip": ModelInputs("CLIPModel", clip_pair, text_table(77), sees="vision_config", arguments={"return_loss": True}),
    "siglip": ModelInputs(
        "SiglipModel", siglip_pair, text_table(64), sees="vision_config", arguments={"return_loss": True}
    ),
    "t5": ModelInputs("T5ForConditionalGeneration", text_to_text, writes=True, tokens={"decoder_start_token_id": 0}),
    "whisper": ModelInputs("WhisperForConditionalGeneration", speech, lambda c: c.count("max_target_positions", 448)),
}
"""By transformers' model_type."""


# -- what is given -----------------------------------------------------------------------------------------------------


def complete(spec: ModelSpec, given: dict[str, object]) -> dict[str, object]:
    """Settings with the lengths filled in that follow from the model; those that mean nothing to it are refused.

    Raises:
        ConfigError: naming the flag.
    """
    feed = MODEL_INPUTS.get(spec.model_type)
    if feed is None:
        if given.get("target_length") is not None:
            raise ConfigError(f"--target-len {given['target_length']}: {spec.name} has no decoder beside an encoder")
        return given
    made, c = dict(given), Config(spec.config, spec.name)
    if feed.sees is None and made.get("image_size") is not None:
        raise ConfigError(f"--image-size: {spec.name} takes no images")
    if made.pop("images", None) not in (None, 0, 1):
        raise ConfigError(
            f"--images {given['images']}: {spec.name} takes "
            + ("no images" if feed.sees is None else "one image a sample")
        )
    for name in ("videos", "frames", "min_pixels", "max_pixels", "max_tiles", "vision", "projector"):
        if made.get(name) not in (None, Job.model_fields[name].default):
            raise ConfigError(f"--{name.replace('_', '-')}: {spec.name} is no language model that sees")
    if not feed.writes and made.get("target_length") is not None:
        raise ConfigError(f"--target-len: {spec.name} has no decoder with a length of its own; --seq-len says it")
    if feed.reads:
        most = feed.most_tokens(c) or c.get("max_position_embeddings")  # DeBERTa's, which bounds nothing
        if most is not None:
            made.setdefault("sequence_length", min(most, Job.model_fields["sequence_length"].default))
        return made
    tokens = tokens_of_image(feed, c, made)
    if made.setdefault("sequence_length", tokens) != tokens:
        raise ConfigError(
            f"--seq-len {made['sequence_length']}: {spec.name} reads no text; --image-size says how many patches"
            " it sees"
        )
    return made


def tokens_of_image(feed: ModelInputs, c: Config, given: Mapping[str, object]) -> int:
    """Patches of one image, and the class token."""
    job = Job.model_construct(None, image_size=given.get("image_size"))
    rows, columns = feed.patches(c, job)
    return max(1, rows * columns + 1)


def check_inputs(spec: ModelSpec, job: Job) -> None:
    """Refuse what this architecture cannot be trained on.

    Raises:
        ConfigError: naming the flag and what is allowed.
        UnsupportedError: for another class than the one that is described.
    """
    feed = MODEL_INPUTS.get(spec.model_type)
    if feed is None:
        return
    c = Config(spec.config, spec.name)
    for name in spec.config.get("architectures") or ():
        if "For" in name and name != feed.trains and not name.endswith("ForPreTraining"):
            raise UnsupportedError(
                f"{spec.name}: a {name} is not known; {spec.model_type} models are trained as {feed.trains}"
            )
    if job.batches == "packed":
        raise ConfigError(
            f"--batches packed: only causal language models take several samples in one row, not {spec.name}"
        )
    if job.loss != "standard":
        raise ConfigError(f"--loss {job.loss}: {feed.trains} has a loss of its own; use --loss standard")
    most = feed.most_tokens(c) if feed.reads else None
    if most is not None and job.sequence_length > most:
        raise ConfigError(
            f"--seq-len {job.sequence_length}: {spec.name} has a table of {most} positions; longer sequences cannot run"
        )
    if feed.sees is not None:
        width, height = feed.image(c, job)
        patch = feed.vision(c).count("patch_size")
        if min(width, height) < patch:
            raise ConfigError(f"--image-size {width}x{height}: {spec.name} cuts images in patches of {patch} x {patch}")


def describe(spec: ModelSpec, job: Job) -> str | None:
    """What a sample is, in a few words; None for a language model."""
    feed = MODEL_INPUTS.get(spec.model_type)
    if feed is None:
        return None
    c, parts = Config(spec.config, spec.name), []
    if feed.reads:
        parts.append(f"{job.batches} sequences of {job.sequence_length} tokens, all equally long")
    if spec.model_type == "whisper":
        parts.append("30 seconds of sound each")
    if feed.writes:
        told = "" if job.target_length else " (not given)"
        parts.append(f"labels of {target_length(job)} tokens{told}")
    if feed.sees is not None:
        width, height = feed.image(c, job)
        rows, columns = feed.patches(c, job)
        parts.append(f"an image of {width} x {height} pixels as {rows} x {columns} patches")
    if "return_loss" in feed.arguments:
        parts.append("told apart within each micro-batch")
    return f"{feed.trains}; {', '.join(parts)}"
