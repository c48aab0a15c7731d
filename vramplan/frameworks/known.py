"""The keys that each framework takes, read from its own sources; data: known.json."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

INHERITS = {"ms-swift": ("transformers",), "llamafactory": ("transformers",), "trl": ("transformers",)}
"""Frameworks whose arguments extend transformers' TrainingArguments."""


@cache
def _table() -> dict[str, list[str]]:
    text = files("vramplan.frameworks").joinpath("known.json").read_text(encoding="utf-8")
    found: dict[str, list[str]] = json.loads(text)
    return found


def known_keys(framework: str) -> frozenset[str]:
    """Every key that some version of the framework takes."""
    table = _table()
    return frozenset(key for name in (framework, *INHERITS.get(framework, ())) for key in table.get(name, ()))
