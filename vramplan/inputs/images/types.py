"""Types of processed images and videos: patches for the vision tower, tokens for the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs.model_spec import Config


class Size(NamedTuple):
    """Width and height of an image, or of a video's frames, in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the image processor set by the user; None: the model's own value, or its processor's default."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_tiles: int | None = None


class Tensor(NamedTuple):
    """An input of the model for one image or video."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    values: tuple[int, ...] | None = None
    """Its elements, if the model's code reads them."""
    layout: str = "rows"
    """How several images are batched: concatenated along the first dimension (rows) or the last (columns), or stacked
    behind dimensions for the samples and the images of each (samples), or for the samples, their tokens and the images
    (tokens)."""

    def batched(self, samples: int, images: int, length: int) -> tuple[int, ...]:
        """Shape for `samples` samples of `length` tokens with `images` images each."""
        if self.layout == "samples":
            return (samples, images, *self.shape)
        if self.layout == "tokens":
            return (samples, length, images, *self.shape)
        if self.layout == "columns":
            return (*self.shape[:-1], samples * images * self.shape[-1])
        return (samples * images * self.shape[0], *self.shape[1:])


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """One image or video after its processor."""

    tokens: int
    """Positions in the text that hold the image's features, or stand for them if cross-attention reads them."""
    extra_tokens: int
    """Start, end and separator tokens that the processor writes beside them."""
    tiles: int
    """Number of tiles that enter the vision tower, thumbnail included; 1 if the image is not cut; frames of a video, or
    pairs of them."""
    rows: int
    """Patches of a tile from top to bottom."""
    columns: int
    """Patches of a tile from left to right."""
    tensors: tuple[Tensor, ...]
    description: str
    """The result in a few words, such as "3 x 2 tiles + thumbnail"."""
    features: tuple[int, int] = (0, 0)
    """Rows and columns of features that remain of the tiles if padding is cut off (LLaVA-NeXT), or of each frame if
    frames are shrunk (LLaVA-OneVision); rows and columns of patches of the overview, if it has others than the tiles
    (LFM2-VL, MiniCPM-V)."""
    frames: int = 0
    """Number of frames of a video; 0 for an image."""
    runs: int = 1
    """Number of equally long runs of tokens in the text, separated by a timestamp, for example."""
    run_lengths: tuple[int, ...] = ()
    """Tokens of each run, if they are not equally long."""
    token: str = "image_token_id"
    """Key of the configuration that holds the id of the token for its features."""

    @property
    def patches(self) -> int:
        """Number of patches that enter the vision tower."""
        return self.tiles * self.rows * self.columns

    @property
    def all_tokens(self) -> int:
        """Number of positions in the text, separators included."""
        return self.tokens + self.extra_tokens

    @property
    def token_kinds(self) -> list[int]:
        """Kind of each of these positions: 0 for text, 1 for an image's features, 2 for a video's."""
        kind, lengths = 2 if self.frames else 1, self.run_lengths or (self.tokens // self.runs,) * self.runs
        extra_per_run, remainder = divmod(self.extra_tokens, len(lengths))
        return [
            token_kind
            for run, length in enumerate(lengths)
            for token_kind in [kind] * length + [0] * (extra_per_run + (run < remainder))
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors on the device; of a tensor that grows with the text, bytes for one token."""
        return sum(prod(tensor.shape) * {"fp32": 4, "int64": 8}[tensor.dtype] for tensor in self.tensors)


Processor = Callable[[Config, Config, Size, Limits], ProcessedImage]
"""(the model's configuration, its preprocessor_config.json, image, limits)"""
VideoProcessor = Callable[[Config, Config, Size, int, Limits], ProcessedImage]
"""(the model's configuration, its video_preprocessor_config.json, one frame, number of frames, limits)"""


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The image processor of one architecture, and the names of its vision modules and inputs."""

    processor: Processor
    tower: str
    """Module path of the vision tower in transformers' class."""
    projector: tuple[str, ...]
    """Module paths of the projector from the tower to the language model; within the tower for Qwen."""
    token_types: str = ""
    """Name of the input in which the processor marks image tokens; "" if there is none."""
    video: VideoProcessor | None = None
    """Its video processor; None if the architecture takes no videos."""
    frozen: tuple[str, ...] = ()
    """Module paths of what takes other inputs (sound): it is loaded, and neither trains nor gets adapters."""


def refuse(limits: Limits, model_type: str, *names: str) -> None:
    """Refuse limits that the processor does not have.

    Raises:
        ConfigError: naming the limit.
    """
    for name in names:
        if getattr(limits, name) is not None:
            raise ConfigError(f"{setting(name)}: the processor of {model_type} has no such limit")


MAX_SIDE = 1 << 16
"""Pixels of the longest side; larger images are refused as a likely mistake."""


def image_size(value: Any) -> Any:
    """(width, height) in pixels from (1344, 896), [1344, 896] or "1344x896".

    Raises:
        ConfigError: for another value, or a side that is not 1 to MAX_SIDE pixels.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+)\s*[xX\u00d7]\s*(\d+)\s*", value)
        if match is None:
            raise ConfigError(f"{setting('image_size', value)}: expected WIDTHxHEIGHT in pixels, such as 1344x896")
        value = (int(match[1]), int(match[2]))
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(side, int) for side in value):
        if not all(0 < side <= MAX_SIDE for side in value):
            raise ConfigError(f"{setting('image_size', tuple(value))}: sides must be 1 to {MAX_SIDE:,} pixels")
        return tuple(value)
    raise ConfigError(f"{setting('image_size', value)}: expected WIDTHxHEIGHT in pixels, such as 1344x896")
