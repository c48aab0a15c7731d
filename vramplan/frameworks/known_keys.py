"""Keys that each framework accepts (known_keys.json) and keys that vramplan refuses (unsupported_keys.json).

``python -m tests.known_keys`` compares the former with the frameworks' own sources and adds new keys.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.settings import ConfigReader


@cache
def _table(name: str) -> Any:
    return json.loads(files("vramplan.frameworks").joinpath(name).read_text(encoding="utf-8"))


def known_keys(framework: str, inherits: tuple[str, ...] = ()) -> frozenset[str]:
    """Every key that some version of the framework takes, with those that it inherits."""
    table = _table("known_keys.json")
    return frozenset(key for name in (framework, *inherits) for key in table.get(name, ()))


def refuse_unmodelled(config: ConfigReader) -> None:
    """Refuse keys that change memory and are not modelled, unless they are off or have one of their harmless values.

    Raises:
        UnsupportedError: naming all of it.
    """
    table = _table("unsupported_keys.json")
    harmless_values: dict[str, list[Any]] = {}
    for name in (*config.inherits, config.framework):
        harmless_values |= table.get(name, {})
    keys = [key for key in config.source.settings if key in harmless_values]
    named = [key for key in keys if not config.is_off(key, *harmless_values[key])]
    if named:
        errors = "; ".join(str(config.unsupported(key)) for key in named)
        without = " ".join(setting("set", f"{key}=") for key in named)
        raise UnsupportedError(f"{errors}; {without} estimates the run without {'it' if len(named) == 1 else 'them'}")
