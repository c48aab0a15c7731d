"""Settings given as ``section.key=value`` for configurations whose settings stand in sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vramplan.frameworks.settings import ConfigValue


def section_of(key: str, settings: Mapping[str, ConfigValue], known: frozenset[str]) -> str:
    """The section that a key with dots is in; empty if the key is one of its own.

    >>> section_of("trl.beta", {}, frozenset({"trl"})), section_of("trl.beta", {}, frozenset({"trl", "trl.beta"}))
    ('trl', '')
    """
    name, dot, _ = key.partition(".")
    if not dot or key in settings or key in known:
        return ""
    return name if name in known or (name in settings and _mapping(settings[name].value) is not None) else ""


def with_key(settings: Mapping[str, ConfigValue], key: str, value: Any, place: str) -> dict[str, ConfigValue]:
    """Settings with a key of a section: ``section.key``, or ``section.inner.key``; an empty value removes it.

    `place` is that of a section which was not there.
    """
    name, _, rest = key.partition(".")
    section = settings.get(name)
    inner = (None if section is None else _mapping(section.value)) or {}
    if value == "" and not inner:
        return dict(settings)
    changed = ConfigValue(_changed(inner, rest.split("."), value), place if section is None else section.place)
    return {**settings, name: changed}


def _changed(mapping: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """A copy of nested mappings with another value at a path."""
    name, rest = path[0], path[1:]
    if rest:
        inner = mapping.get(name)
        return {**mapping, name: _changed(inner if isinstance(inner, dict) else {}, rest, value)}
    others = {key: item for key, item in mapping.items() if key != name}
    return others if value == "" else {**others, name: value}


def _mapping(value: Any) -> dict[str, Any] | None:
    """A mapping, also one that is written as JSON; None for another value."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return value if isinstance(value, dict) else None
