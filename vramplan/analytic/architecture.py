"""Which blocks describe a model: its language model, and its eyes where it has any."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.families import FAMILIES, Family, family_of
from vramplan.analytic.vision import SIGHTS, Sight
from vramplan.errors import UnsupportedError
from vramplan.spec import Config, ModelSpec


class Architecture(NamedTuple):
    """A model as the blocks see it."""

    family: Family
    """The language model's."""
    config: Config
    """The language model's."""
    sight: Sight | None
    whole: Config


def architecture_of(spec: ModelSpec) -> Architecture:
    """What describes a model.

    Raises:
        UnsupportedError: where no block describes it.
    """
    whole, sight = Config(spec.config, spec.name), SIGHTS.get(spec.model_type)
    if sight is None:
        return Architecture(family_of(spec.model_type, spec.name), whole, None, whole)
    tower = whole.part("vision_config").text("model_type", sight.tower_type or "")
    if sight.tower_type not in (None, tower):
        raise UnsupportedError(
            f"{spec.name}: a {spec.model_type} with a tower of type {tower!r} is not described by any block;"
            " the real model can be traced"
        )
    text = spec.config.get("text_config") or spec.config
    tied = spec.config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    config = Config({**text, "tie_word_embeddings": tied}, spec.name)
    return Architecture(family_of(sight.text_type or config.text("model_type", ""), spec.name), config, sight, whole)


def is_described(spec: ModelSpec) -> bool:
    """Whether blocks describe it."""
    try:
        architecture_of(spec)
    except UnsupportedError:
        return False
    return True


__all__ = ["FAMILIES", "Architecture", "architecture_of", "is_described"]
