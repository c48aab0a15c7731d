"""What a processor makes of an image or a video: patches for the tower, tokens for the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

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
    """What the user sets beside the image itself; None is what the model ships, or its processor's default."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_tiles: int | None = None


class Tensor(NamedTuple):
    """An input of the model for one image or video."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    values: tuple[int, ...] | None = None
    """The numbers in it, where the model's code looks at them."""
    layout: str = "rows"
    """How those of several images lie: one after another along the first dimension (rows); behind dimensions for the
    samples and the images of each (samples), or for the samples, their tokens, and the images (tokens)."""

    def batched(self, samples: int, images: int, length: int) -> tuple[int, ...]:
        """Shape for `samples` of `length` tokens with so many images each."""
        if self.layout == "samples":
            return (samples, images, *self.shape)
        if self.layout == "tokens":
            return (samples, length, images, *self.shape)
        return (samples * images * self.shape[0], *self.shape[1:])


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """One image or video after its processor."""

    tokens: int
    """Positions in the text that take the image's features, or stand for them where cross-attention reads them."""
    extra_tokens: int
    """Start, end and separators that the processor writes beside them."""
    tiles: int
    """Equal pieces that go through the tower, thumbnail included; 1 where an image goes in whole; a video's frames, or
    pairs of them."""
    rows: int
    """Patches of a tile from top to bottom."""
    columns: int
    """Patches of a tile from left to right."""
    tensors: tuple[Tensor, ...]
    said: str
    """What it became, in a few words."""
    features: tuple[int, int] = (0, 0)
    """Rows and columns of features that are left of the tiles, where padding is cut off them (LLaVA-NeXT), or of each
    frame, where frames are shrunk (LLaVA-OneVision)."""
    frames: int = 0
    """Frames of a video; 0 for an image."""
    runs: int = 1
    """Pieces, of equally many tokens, in which they stand in the text: with a time between them, for example."""
    token: str = "image_token_id"
    """What the configuration calls the token that stands for its features."""

    @property
    def patches(self) -> int:
        """Patches that go through the tower."""
        return self.tiles * self.rows * self.columns

    @property
    def all_tokens(self) -> int:
        """Positions that it takes in the text."""
        return self.tokens + self.extra_tokens

    @property
    def kinds(self) -> list[int]:
        """For each of these what stands there: 0 for text, 1 for an image's features, 2 for a video's."""
        kind, each = 2 if self.frames else 1, self.tokens // self.runs
        more, rest = divmod(self.extra_tokens, self.runs)
        return [one for run in range(self.runs) for one in [kind] * each + [0] * (more + (run < rest))]

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors on the device; of one that grows with the text, those for one token."""
        return sum(prod(one.shape) * {"fp32": 4, "int64": 8}[one.dtype] for one in self.tensors)


Processor = Callable[[Config, Config, Size, Limits], ProcessedImage]
"""(the model's configuration, its preprocessor_config.json, image, limits)"""
Film = Callable[[Config, Config, Size, int, Limits], ProcessedImage]
"""(the model's configuration, its video_preprocessor_config.json, one frame, number of frames, limits)"""


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """How one architecture sees: its processor, and what its parts and inputs are called."""

    processor: Processor
    tower: str
    """Path of the vision tower in transformers' class."""
    projector: tuple[str, ...]
    """Paths of what leads from it to the language model; within the tower for Qwen."""
    token_types: str = ""
    """The input in which the processor marks image tokens for the model, where it does."""
    film: Film | None = None
    """What it makes of a video, where it takes any."""


def refuse(limits: Limits, model_type: str, *names: str) -> None:
    """Refuse limits that this processor does not have.

    Raises:
        ConfigError: naming the flag.
    """
    for name in names:
        if getattr(limits, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: the processor of {model_type} has no such limit")


MOST_PIXELS = 1 << 16
"""Of one side: larger images are taken for a slip."""


def image_size(given: Any) -> Any:
    """Width and height, however they are given: (1344, 896), [1344, 896] or "1344x896".

    Raises:
        ConfigError: for something else, or an image without pixels.
    """
    if isinstance(given, str):
        found = re.fullmatch(r"\s*(\d+)\s*[xX\u00d7]\s*(\d+)\s*", given)
        if found is None:
            raise ConfigError(f"{setting('image_size', given)}: expected WIDTHxHEIGHT in pixels, such as 1344x896")
        given = (int(found[1]), int(found[2]))
    if isinstance(given, (list, tuple)) and len(given) == 2 and all(isinstance(side, int) for side in given):
        if not all(0 < side <= MOST_PIXELS for side in given):
            raise ConfigError(f"{setting('image_size', tuple(given))}: sides must be 1 to {MOST_PIXELS:,} pixels")
        return tuple(given)
    raise ConfigError(f"{setting('image_size', given)}: expected WIDTHxHEIGHT in pixels, such as 1344x896")
