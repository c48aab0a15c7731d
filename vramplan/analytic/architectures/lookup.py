"""The records that describe a model: its architecture, and its vision tower if it has one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vramplan.analytic.architectures import Architecture, text_architecture_of
from vramplan.analytic.architectures.towers import TOWERS
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.model_spec import Config, ModelSpec

if TYPE_CHECKING:
    from vramplan.analytic.architectures.vision_tower import VisionTower


class ModelArchitecture(NamedTuple):
    """The records that describe one model, and the configurations that they read."""

    architecture: Architecture
    """The language model's if there is a vision tower, else the whole model's."""
    config: Config
    """The same model's configuration."""
    tower: VisionTower | None
    whole: Config
    """The configuration of the whole model."""

    def stacks(self) -> list[list[Hashable]]:
        """For each stack the kinds of its layers; the vision tower's stack comes last."""
        stacks = self.architecture.stacks(self.config)
        return stacks if self.tower is None else [*stacks, self.tower.kinds(self.tower.config_of(self.whole))]


def architecture_of(spec: ModelSpec) -> ModelArchitecture:
    """The records that describe a model.

    Raises:
        UnsupportedError: if the analytic estimator does not support the architecture.
    """
    whole = Config(spec.config, spec.name)
    tower = TOWERS.get(f"{spec.model_type}/{_tower_type(spec)}") or TOWERS.get(spec.model_type)
    if tower is None:
        architecture = text_architecture_of(spec.model_type, spec.name)
        config = Config({**architecture.defaults, **spec.config}, spec.name)
        return ModelArchitecture(architecture, config, None, whole)
    if tower.tower_type not in (None, _tower_type(spec) or tower.tower_type):
        raise UnsupportedError(
            f"{spec.name}: a {spec.model_type} with a vision tower of type {_tower_type(spec)!r} is not supported;"
            f" {setting('by', 'trace')} runs it"
        )
    text = spec.config.get("text_config") or spec.config
    architecture = text_architecture_of(tower.text_type or Config(text, spec.name).text("model_type", ""), spec.name)
    tied = spec.config.get("tie_word_embeddings", text.get("tie_word_embeddings", architecture.tied))
    config = Config({**architecture.defaults, **text, "tie_word_embeddings": tied}, spec.name)
    if tower.text_type is None:  # PEFT goes by the type of the whole model
        architecture = replace(architecture, peft_experts="")
    if tower.buffers(whole):
        text_buffers, buffers = architecture.buffers, tower.buffers(whole)
        architecture = replace(architecture, buffers=lambda c: [*text_buffers(c), *buffers])
    if tower.attention:
        architecture = replace(architecture, attention=tower.attention)
    return ModelArchitecture(architecture, config, tower, whole)


def _tower_type(spec: ModelSpec) -> str:
    vision = spec.config.get("vision_config")
    return str(vision.get("model_type", "")) if isinstance(vision, Mapping) else ""


def is_described(spec: ModelSpec) -> bool:
    """Whether the analytic estimator supports the model's architecture."""
    try:
        architecture_of(spec)
    except UnsupportedError:
        return False
    return True


def peft_experts_of(spec: ModelSpec) -> str:
    """PEFT's pattern for the experts of a model (:mod:`vramplan.analytic.layers.moe_peft`); empty if it has none."""
    return architecture_of(spec).architecture.peft_experts if is_described(spec) else ""


__all__ = ["ModelArchitecture", "architecture_of", "is_described", "peft_experts_of"]
