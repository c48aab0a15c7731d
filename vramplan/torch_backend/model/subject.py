"""A model to train and what it is called with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from vramplan.dataclass import dataclass
from vramplan.inputs.images import ProcessedImage
from vramplan.inputs.model_inputs import Input


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The images or videos of every sample, and their tokens in the text."""

    processed: ProcessedImage
    per_sample: int
    token_id: int
    """The id in input_ids that an image feature replaces."""
    token_types: str
    """Name of the input that marks these ids, such as token_type_ids; "" for none."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Inputs of a model other than a causal language model."""

    inputs: tuple[Input, ...]
    arguments: Mapping[str, bool]
    """Keyword arguments of forward() that are not tensors."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to train, and its inputs."""

    module: nn.Module
    example: Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...] | None = None
    """Inputs of a user's own model for one micro-batch; None for a model of transformers."""
    vocabulary: int | None = None
    """Width of the logits, if known."""
    images: ImageInputs | None = None
    """Images or videos of the samples of a vision-language model."""
    model_inputs: InputSpec | None = None
    """Inputs of a model other than a causal language model."""
    casts_itself: bool = False
    """Whether each forward of the model has an autocast context of its own, of several in one loss."""
