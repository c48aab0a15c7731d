"""Everything vramplan raises on purpose.

    VramplanError                 the user can fix it; one line: what, where, what to do
    ├── SpecError                 a model description is broken or lacks a key
    ├── UnknownNameError          unknown model, GPU, optimizer ...; carries the nearest names
    ├── ConfigError               a setting is impossible or contradicts another
    │   └── CannotRunError        torch or the GPU cannot run it; carries settings that run
    ├── UnsupportedError          a known setting that is not modelled: refused, never guessed
    ├── HubError                  the model hub did not answer
    ├── ProbeError                a probe's process crashed, hung or was killed
    └── MissingDependencyError    an extra is not installed; names the install command

"Does not fit" is a result, not an error.

A message names settings by :func:`setting`, so that each interface spells them its own way: Python shows
``sequence_length=0``, the command line ``--seq-len 0``, `check` the key of the configuration file.

>>> error = ConfigError(f"{setting('sequence_length', 0)}: expected 1 or more")
>>> str(error), error.field, error.value, error.reason
('sequence_length=0: expected 1 or more', 'sequence_length', '0', 'expected 1 or more')
>>> error.spelled(lambda field, value: f"--seq-len {value}")
'--seq-len 0: expected 1 or more'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Speller = Callable[[str, str], str]
"""(field of the job or parameter, value as text or "") -> the setting in the spelling of an interface."""
_SETTING = re.compile("\x02([^\x1f\x03]*)\x1f([^\x03]*)\x03")
_IN_BRACES = re.compile(r"\{(\w+)(?:=([^{}]+))?\}")


def setting(field: str, value: object = "") -> str:
    """A setting inside an error's message, which :func:`spell` replaces by its spelling."""
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"\x02{field}\x1f{text}\x03"


def name_settings(message: str, job: object = None) -> str:
    """A message with its settings in braces replaced: ``{loss}`` has the job's value, ``{loss=liger}`` the given one.

    Without a job, ``{loss}`` is the bare name.
    """

    def replace(match: re.Match[str]) -> str:
        field, value = match[1], match[2]
        return setting(field, value if value is not None else "" if job is None else getattr(job, field))

    return _IN_BRACES.sub(replace, message)


def spell(message: str, speller: Speller) -> str:
    """A message with each of its settings spelled."""
    return _SETTING.sub(lambda match: speller(match[1], match[2]), message)


def as_python(field: str, value: str) -> str:
    """A setting as a keyword argument."""
    return f"{field}={value}" if value else field


class VramplanError(Exception):
    """A mistake or limit that the user can act on. ``str(error)`` is one line, whatever value it quotes."""

    def __str__(self) -> str:
        return self.spelled(as_python)

    @property
    def text(self) -> str:
        """The message with its settings unspelled, for wrapping it in another error."""
        return " ".join(line.strip() for line in super().__str__().splitlines())

    def spelled(self, speller: Speller) -> str:
        """The message on one line, its settings spelled."""
        return spell(self.text, speller)

    @property
    def field(self) -> str | None:
        """The first setting that the message names; None if it names none."""
        match = _SETTING.search(self.text)
        return match[1] if match else None

    @property
    def value(self) -> str | None:
        """The value of that setting as text."""
        match = _SETTING.search(self.text)
        return match[2] if match else None

    @property
    def reason(self) -> str:
        """The message after that setting."""
        match = _SETTING.search(self.text)
        return spell(self.text[match.end() :].lstrip(" :"), as_python) if match else str(self)


class SpecError(VramplanError):
    """A model description is broken, truncated or lacks a key."""


class ConfigError(VramplanError):
    """A setting is impossible, out of range, or contradicts another."""


class CannotRunError(ConfigError):
    """Torch or the GPU cannot run a setting."""

    def __init__(self, settings: str, why: str, runs: Mapping[str, Any], update: Mapping[str, Any]) -> None:
        self.why, self.update = why, update
        """The reason; the fields of the job to change. `runs` are all fields to name in the message, changed or not."""
        advice = " ".join(setting(name, value) for name, value in runs.items())
        super().__init__(f"{settings}: {why}; run {advice}")


class UnsupportedError(VramplanError):
    """A known setting that vramplan does not model."""


class HubError(VramplanError):
    """The model hub did not answer: gated, missing, unreachable or rate-limited."""


class ProbeError(VramplanError):
    """A probe's process crashed, hung or was killed, without a result."""


class MissingDependencyError(VramplanError):
    """An optional dependency is needed and not installed."""


class UnknownNameError(VramplanError):
    """An unknown name; the message lists the nearest ones."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", nearest: tuple[str, ...] = ()
    ) -> None:
        self.nearest = nearest or nearest_names(name, known)
        message = f"unknown {kind} {name!r}"
        if self.nearest:
            message += f"; did you mean {', '.join(self.nearest)}?"
        if hint:
            message += f"{'' if self.nearest else ';'} {hint}"
        super().__init__(message)


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The up to `count` names of `known` that begin with `name`, the shortest first, or look most like it; in any case.

    >>> nearest_names("bert-base", ["roberta-base", "t5-base", "bert-base-uncased"], 2)
    ('bert-base-uncased', 'roberta-base')
    """
    import difflib

    lower = name.lower()
    by_lower = {candidate.lower(): candidate for candidate in known}
    longer = sorted((key for key in by_lower if len(lower) > 2 and key.startswith(lower)), key=len)
    close = difflib.get_close_matches(lower, by_lower, n=count, cutoff=0.5)
    return tuple(by_lower[key] for key in [*dict.fromkeys((*longer, *close))][:count])
