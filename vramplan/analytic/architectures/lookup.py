"""Which blocks describe a model: its language model, and its eyes where it has any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vramplan.analytic.architectures import FAMILIES, Family, family_of
from vramplan.analytic.architectures.towers import SIGHTS, VisionTower
from vramplan.errors import UnsupportedError
from vramplan.inputs.model_spec import Config, ModelSpec


class Architecture(NamedTuple):
    """A model as the blocks see it."""

    family: Family
    """The language model's."""
    config: Config
    """The language model's."""
    sight: VisionTower | None
    whole: Config


def architecture_of(spec: ModelSpec) -> Architecture:
    """What describes a model.

    Raises:
        UnsupportedError: where no block describes it.
    """
    whole = Config(spec.config, spec.name)
    sight = SIGHTS.get(f"{spec.model_type}/{_tower(spec)}") or SIGHTS.get(spec.model_type)
    if sight is None:
        family = family_of(spec.model_type, spec.name)
        return Architecture(family, Config({**family.defaults, **spec.config}, spec.name), None, whole)
    if sight.tower_type not in (None, _tower(spec) or sight.tower_type):
        raise UnsupportedError(
            f"{spec.name}: a {spec.model_type} with a tower of type {_tower(spec)!r} is not described by any block;"
            " the real model can be traced"
        )
    text = spec.config.get("text_config") or spec.config
    tied = spec.config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    family = family_of(sight.text_type or Config(text, spec.name).text("model_type", ""), spec.name)
    config = Config({**family.defaults, **text, "tie_word_embeddings": tied}, spec.name)
    return Architecture(family, config, sight, whole)


def _tower(spec: ModelSpec) -> str:
    """The tower's own type, where the configuration says it."""
    vision = spec.config.get("vision_config")
    return str(vision.get("model_type", "")) if isinstance(vision, Mapping) else ""


def is_described(spec: ModelSpec) -> bool:
    """Whether blocks describe it."""
    try:
        architecture_of(spec)
    except UnsupportedError:
        return False
    return True


__all__ = ["FAMILIES", "Architecture", "architecture_of", "is_described"]
