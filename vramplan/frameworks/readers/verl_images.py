"""Models that see in verl's reinforcement training: which of them are modelled, and which of their parts train.

(0.7.1, workers/fsdp_workers.py: _build_model_optimizer; 0.9.1, workers/engine/fsdp/transformer_impl.py and
models/transformers/monkey_patch.py.) Data sets say what images there are, and not the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers import verl_rl
from vramplan.frameworks.readers.verl_rl import ACTOR, MODEL, STRATEGY
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.image_task_rules import OF_VERL
from vramplan.inputs.images import IMAGE_PROCESSORS

FREEZE, EXCLUDED = f"{ACTOR}freeze_vision_tower", f"{MODEL}exclude_modules"
FIRST = "0.7"
"""The first version whose models that see are modelled."""
LAST_WITH_FREEZE = "0.8"
"""The last version that knows ``freeze_vision_tower``; its engine does not read it."""
SECOND = f"{STRATEGY}=fsdp2"
OF_TOWER = (".*visual.*", "^.*visual.*$", "visual", "model.visual")
"""Patterns that leave adapters out of the tower."""


def knows_freezing(config: ConfigReader) -> bool:
    """Whether a key says that verl is not newer than 0.8."""
    return config.has(FREEZE)


def freezes(config: ConfigReader) -> bool:
    """Whether the configuration asks for a frozen tower."""
    return config.boolean(FREEZE, default=False)


def sees(config: ConfigReader) -> bool:
    """Whether the model is known to take images."""
    return verl_rl.model_type(config) in IMAGE_PROCESSORS


def not_modelled(config: ConfigReader, version: str) -> Iterator[str]:
    """What of the images, the tower and its adapters keeps the job from being estimated.

    Raises:
        ConfigError: for a key with which the version stops.
    """
    if config.has(FREEZE) and at_least(version, "0.9"):
        raise ConfigError(f"{config.place(FREEZE)}: verl {version} has no such key and stops at it; leave it out")
    excluded = None if config.is_off(EXCLUDED) else config.string(EXCLUDED)
    if excluded is not None and excluded.strip("'\"") not in OF_TOWER:
        yield str(config.unsupported(EXCLUDED, f"is not modelled yet; modelled: {EXCLUDED}='{OF_TOWER[0]}'"))
    if not sees(config):
        return
    path = config.place(f"{MODEL}path")
    if verl_rl.model_type(config) not in OF_VERL:
        what = f"images of {verl_rl.model_type(config)} were not compared with a run of verl's actor"
        yield f"{path}: {what}; modelled: {', '.join(OF_VERL)}"
    if not at_least(version, FIRST):
        yield f"{path}: images are not modelled of verl {version}; modelled: from {FIRST} on"
    if verl_rl.has_critic(config):
        yield f"{path}: a critic that sees is not modelled yet; modelled: algorithm.adv_estimator=grpo"
    if config.boolean(f"{MODEL}use_liger", default=False):
        yield str(config.unsupported(f"{MODEL}use_liger", "was not compared with a run of a model that sees"))
    if config.lowercase(STRATEGY, default="fsdp") != "fsdp2":
        for name, is_on in ((FREEZE, _is_frozen(config, version)), (f"{MODEL}lora_rank", _has_adapters(config))):
            if is_on:
                what = f"with images is not modelled under FSDP 1; modelled: {SECOND}"
                yield str(config.unsupported(name, what))
    if _is_frozen(config, version) and _has_adapters(config) and excluded is None:
        yield str(config.unsupported(FREEZE, f"with adapters in the tower is not modelled; modelled: {EXCLUDED}"))


def parts(config: ConfigReader, version: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Which parts of a model that sees train, and the images of a micro-batch that a budget of tokens fills."""
    if verl_rl.model_type(config) and not sees(config):
        return {}
    _note(config, version)
    if _has_adapters(config):
        state = "lora" if config.is_off(EXCLUDED) else "frozen"
    else:
        state = "frozen" if _is_frozen(config, version) else "train"
    return {"vision": state, "projector": state, **_images(config, batch)}


def _images(config: ConfigReader, batch: dict[str, Any]) -> dict[str, int]:
    if batch["batches"] != "packed":
        return {}
    longest = config.integer("data.max_prompt_length", default=512) + config.integer(
        "data.max_response_length", default=512
    )
    images = max(1, batch["sequence_length"] // longest)
    config.note(
        "doubt",
        "images",
        f"of a micro-batch: {images}, one for each of as many samples of {longest:,} tokens as the budget holds;"
        " shorter samples are more, each with its image: --images N says whether N fit",
    )
    return {"images": images}


def _note(config: ConfigReader, version: str) -> None:
    if not freezes(config) or not sees(config):
        return
    if _is_frozen(config, version):
        config.note("default", FREEZE, "the merger is part of the tower: it is frozen too")
        return
    config.note(
        "warning",
        FREEZE,
        f"is not read by FSDP in verl {version}: the tower trains; in 0.7 it is frozen (--framework-version 0.7.1)",
    )


def _is_frozen(config: ConfigReader, version: str) -> bool:
    """Workers before 0.8 freeze the tower; the engine from then on does not read the key."""
    return freezes(config) and not at_least(version, LAST_WITH_FREEZE)


def _has_adapters(config: ConfigReader) -> bool:
    return config.integer(f"{MODEL}lora_rank", default=0, least=0) > 0
