"""Everything vramplan raises on purpose.

    VramplanError                 a user can mend it; one line: what, where, what to do
    ├── SpecError                 a model description is broken or lacks a key
    ├── UnknownNameError          no such model, card, optimizer ...; carries the nearest names
    ├── ConfigError               a setting is impossible or contradicts another
    │   └── CannotRunError        torch or the card cannot run it; carries what runs instead
    ├── UnsupportedError          a known setting that is not modelled: refused, never guessed
    ├── HubError                  the model hub could not answer
    ├── ProbeError                a probe's process crashed, hung or was killed
    └── MissingDependencyError    an extra is not installed; names the install command

"Does not fit" is a result, not an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class VramplanError(Exception):
    """A mistake or limit that the user can act on. ``str(error)`` is one line, whatever value it quotes."""

    def __str__(self) -> str:
        return " ".join(line.strip() for line in super().__str__().splitlines())


class SpecError(VramplanError):
    """A model description is broken, truncated or lacks a key."""


class ConfigError(VramplanError):
    """A setting is impossible, out of range, or contradicts another."""


class CannotRunError(ConfigError):
    """Torch or the card cannot run a setting."""

    def __init__(self, setting: str, why: str, flags: str, update: Mapping[str, Any]) -> None:
        self.why, self.update = why, update
        """Without the names of flags, which only the command line has; the fields of the job that would run."""
        super().__init__(f"{setting}: {why}; run {flags}")


class UnsupportedError(VramplanError):
    """A known setting that vramplan does not model."""


class HubError(VramplanError):
    """The model hub could not answer: gated, missing, unreachable or rate-limited."""


class ProbeError(VramplanError):
    """A probe's process crashed, hung or was killed: nothing is known about the job."""


class MissingDependencyError(VramplanError):
    """An optional dependency is needed and not installed."""


class UnknownNameError(VramplanError):
    """No such name; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.nearest = nearest_names(name, known)
        message = f"unknown {kind} {name!r}"
        if self.nearest:
            message += f"; did you mean {', '.join(self.nearest)}?"
        if hint:
            message += f"{'' if self.nearest else ';'} {hint}"
        super().__init__(message)


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The up to `count` names of `known` that look most like `name`, ignoring case."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.5)
    return tuple(by_lower[key] for key in close)
