"""Hydra's overrides as settings: ``key=value``, ``+key=value``, ``++key=value``, ``~key``, ``key=[a,b]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax import argv

PLACES = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name", "--config-dir": "path"}
"""Flags that name a configuration in place of the program's own."""


def split(words: Sequence[str]) -> tuple[list[str], dict[str, ConfigValue]]:
    """(words that belong to no setting, settings); the configuration that a command names instead is ``config``.

    Hydra takes a name without its ending, and looks for it in the path.

    Raises:
        ConfigError: for a word that only a run would tell.
    """
    named: dict[str, str] = {}
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        flag, has_value, value = word.partition("=")
        if flag in PLACES:
            named[PLACES[flag]] = value if has_value else waiting.pop(0) if waiting else ""
        elif not word.startswith("~"):
            rest.append(word.lstrip("+") if word.startswith("++") else word)
    loose, settings = argv.split(rest)
    added = {word.lstrip("+").partition("=")[0] for word in words if word.startswith("+")}
    settings = {
        key: value._replace(value=_list(value.value), place=f"+{key}" if key in added else key)
        for key, value in settings.items()
    }
    if "path" in named:
        name = str(PurePosixPath(named["path"], named.get("name", "")))
        settings["config"] = ConfigValue(name if name.endswith(".yaml") else f"{name}.yaml", "--config-name")
    return loose, settings


def _list(value: object) -> object:
    """The items of ``[a,b]``; any other value as it is."""
    if not (isinstance(value, str) and value.startswith("[") and value.endswith("]")):
        return value
    return [item.strip(" '\"") for item in value[1:-1].split(",") if item.strip()]
