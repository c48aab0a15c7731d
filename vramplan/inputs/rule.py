"""A combination of settings that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.job import Job


class Rule(NamedTuple):
    """A combination of settings that is refused."""

    applies: Callable[[Job], bool]
    error: type[ConfigError] | type[UnsupportedError]
    message: str
    """Settings stand in braces, see :func:`vramplan.errors.name_settings`."""


IMPOSSIBLE, UNSUPPORTED = ConfigError, UnsupportedError
