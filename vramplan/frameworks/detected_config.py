"""A configuration together with the framework that it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from vramplan.frameworks.framework import Framework
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.section_settings import section_of, with_key
from vramplan.frameworks.settings import ConfigSource, ConfigValue
from vramplan.frameworks.syntax.shell import Command


class Origin(NamedTuple):
    """The command that settings were read from."""

    command: Command
    num_words: int
    """Its last words, those that the framework itself reads."""


class DetectedConfig(NamedTuple):
    """A configuration and the framework that it is for."""

    framework: Framework
    source: ConfigSource
    origin: Origin | None = None
    """None for a configuration file."""

    def with_settings(self, settings: Mapping[str, str]) -> DetectedConfig:
        """The same with these settings over its own; an empty value removes a key.

        A key with dots reaches into a section, unless the framework has the whole key.
        """
        if not settings:
            return self
        merged, inner = dict(self.source.settings), dict(self.source.inner)
        known = known_keys(self.framework.name, self.framework.inherits)
        for key, text in settings.items():
            value = ConfigValue(_parsed(text), f"--set {key}={text}")
            if section_of(key, merged, known) and (text == "" or not self.framework.in_sections):
                merged = with_key(merged, key, value.value, value.place)
                inner[key] = value
            else:
                merged[key] = value
        merged = {key: value for key, value in merged.items() if value.value != ""}
        return self._replace(source=replace(self.source, settings=merged, inner=inner))


def _parsed(value: str) -> Any:
    """A list or a mapping if a value is written as JSON; else the text, which each reader converts."""
    if value.startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
