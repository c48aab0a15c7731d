"""Configurations that torchtune ships and that commands name: torchtune_configs.json (0.6.1).

``python -m tests.torchtune_configs`` reads them from the installed package.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from vramplan.errors import UnknownNameError
from vramplan.frameworks.settings import ConfigValue

NAME = "shipped config"
"""The setting that holds the name, which no command can set."""


@cache
def _recipes() -> dict[str, Any]:
    text = files("vramplan.frameworks.readers").joinpath("torchtune_configs.json").read_text(encoding="utf-8")
    recipes: dict[str, Any] = json.loads(text)["recipes"]
    return recipes


def configs() -> dict[tuple[str, str], dict[str, Any]]:
    """The settings of each configuration, by (recipe, name)."""
    return {
        (recipe, name): row["alike"] | own for recipe, row in _recipes().items() for name, own in row["configs"].items()
    }


def settings_of(name: str, recipe: str) -> dict[str, ConfigValue]:
    """The settings of the configuration that ``--config NAME`` means: the recipe's own, else another's of that name.

    torchtune 0.6.1, _cli/run.py: _get_config.

    Raises:
        UnknownNameError: if no recipe that is read has one of that name.
    """
    table = configs()
    named = [settings for (_, other), settings in table.items() if other == name]
    settings = table.get((recipe, name), next(iter(named), None))
    if settings is None:
        own = {other for of, other in table if of == recipe}
        raise UnknownNameError(
            "torchtune configuration", name, sorted(own or {other for _, other in table}), "[--config]"
        )
    values = {key: ConfigValue(value, f"{name}: {key}") for key, value in settings.items()}
    return values | {NAME: ConfigValue(name, "--config")}
