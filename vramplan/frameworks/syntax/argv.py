"""A command's words as settings: ``--key value``, ``--key=value``, ``--flag``, ``--list a b``, ``key=value``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigSource, ConfigValue
from vramplan.frameworks.syntax.shell import UNKNOWN

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_HOLDS_FLAGS = re.compile(
    r"\$\{?\w*(args?|opts|options|flags?|extra|params|arguments)\b|\[[@*]\]|\$\{?[@*]", re.IGNORECASE
)
"""Variables that hold flags as a rule, and those that may hold several words."""
_PAIR = re.compile(r"\+?([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


class Piece(NamedTuple):
    """One setting of a command, or a word that belongs to none."""

    name: str
    """With underscores; empty for a word that belongs to no setting."""
    value: object
    shown: str
    """As the command spells it."""
    first: int
    """Index of its first word."""
    last: int
    """Index of its last word."""


def pieces(words: Sequence[str], pairs_end_flags: bool = False) -> Iterator[Piece]:
    """The settings in the words of a command.

    Args:
        words: the words.
        pairs_end_flags: whether ``key=value`` behind a flag's value is a setting of its own, not one more value.
    """
    index = 0
    while index < len(words):
        first, word = index, words[index]
        index += 1
        if _is_flag(word):
            name, _, value = word.lstrip("-").partition("=")
            values = [value] if "=" in word else []
            while "=" not in word and index < len(words) and not _is_flag(words[index]):
                if pairs_end_flags and values and _PAIR.fullmatch(words[index]):
                    break
                values.append(words[index])
                index += 1
            name = name.replace("-", "_")
            if not values and name.startswith("no_") and name != "no_cuda":  # HfArgumentParser's --no_x
                yield Piece(name[3:], False, word, first, first)
            else:
                yield Piece(name, _value(values), word.partition("=")[0], first, index - 1)
        elif (pair := _PAIR.fullmatch(word)) is not None:
            yield Piece(pair[1], pair[2], word, first, first)
        else:
            yield Piece("", word, word, first, first)


def split(words: Sequence[str]) -> tuple[list[str], dict[str, ConfigValue]]:
    """(words that belong to no flag, settings).

    Flags' names get underscores. The last of several equal flags counts, as in argparse.
    """
    for previous, word in zip(["", *words], words, strict=False):
        is_value = _is_flag(previous) and "=" not in previous and not _HOLDS_FLAGS.search(word)
        is_letter = word.replace(UNKNOWN, "") == "?"  # one character, as in --chars_to_ignore , ? . !
        if word.startswith(UNKNOWN) and not is_value and not is_letter:  # may be anything, flags too
            raise ConfigError(
                f"{word.replace(UNKNOWN, '')}: is not known without running the script; set it in the call"
            )
    settings = list(pieces(words))
    return [piece.shown for piece in settings if not piece.name], {
        piece.name: ConfigValue(piece.value, piece.shown) for piece in settings if piece.name
    }


def _is_flag(word: str) -> bool:
    return _FLAG.fullmatch(word) is not None


def _value(values: list[str]) -> object:
    if not values:
        return True
    return values[0] if len(values) == 1 else list(values)


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def in_sections(source: ConfigSource) -> ConfigSource:
    """The source with settings in sections as ``section.key``, and references to other settings resolved."""
    settings = flattened(source.settings)
    for name, value in settings.items():
        reference = _REFERENCE.fullmatch(str(value.value).strip())
        if reference is not None and reference[1] in settings:
            settings[name] = ConfigValue(settings[reference[1]].value, value.place)
    return replace(source, settings=settings)


def flattened(settings: Mapping[str, ConfigValue], prefix: str = "") -> dict[str, ConfigValue]:
    """Settings in sections as ``section.key``; settings written with dots override them."""
    flat: dict[str, ConfigValue] = {}
    for name, value in settings.items():
        if isinstance(value.value, dict):
            inner = {key: ConfigValue(inner_value, value.place) for key, inner_value in value.value.items()}
            flat = flattened(inner, f"{prefix}{name}.") | flat
        else:
            flat[f"{prefix}{name}"] = value
    return flat
