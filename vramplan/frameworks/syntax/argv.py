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
_PAIR = re.compile(r"\+?([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


class Piece(NamedTuple):
    """What some of a command's words say."""

    name: str
    """With underscores; empty for a word that belongs to no setting."""
    value: object
    shown: str
    """As it was spelt."""
    first: int
    last: int
    """Of its words."""


def pieces(words: Sequence[str]) -> Iterator[Piece]:
    """The words of a command, put together to settings."""
    index = 0
    while index < len(words):
        first, word = index, words[index]
        index += 1
        if _is_flag(word):
            name, _, given = word.lstrip("-").partition("=")
            values = [given] if "=" in word else []
            while "=" not in word and index < len(words) and not _is_flag(words[index]):
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

    A flag's name is taken with underscores. What is given twice counts the second time, as argparse has it.
    """
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith(UNKNOWN) and not _is_flag(before):  # may be anything, flags too
            raise ConfigError(
                f"{word.replace(UNKNOWN, '')}: is not known without running the script; set it in the call"
            )
    found = list(pieces(words))
    return [one.shown for one in found if not one.name], {
        one.name: ConfigValue(one.value, one.shown) for one in found if one.name
    }


def _is_flag(word: str) -> bool:
    return _FLAG.fullmatch(word) is not None


def _value(values: list[str]) -> object:
    if not values:
        return True
    return values[0] if len(values) == 1 else list(values)


def dotted(settings: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
    """``a.b: 1`` put into a mapping under ``a``.

    Raises:
        ConfigError: where ``a`` is something else as well.
    """
    made: dict[str, ConfigValue] = {}
    for name, found in settings.items():
        first, _, rest = name.partition(".")
        if not rest:
            made[name] = found
            continue
        outer = made.setdefault(first, ConfigValue({}, found.place))
        if not isinstance(outer.value, dict):
            raise ConfigError(f"{found.place}: {first} is given as a value and as a mapping")
        outer.value[rest] = found.value
    return made


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def in_sections(source: ConfigSource) -> ConfigSource:
    """A source whose settings stand in sections, each as ``section.key``, with what refers to another put in."""
    settings = flattened(source.settings)
    for name, found in settings.items():
        reference = _REFERENCE.fullmatch(str(found.value).strip())
        if reference is not None and reference[1] in settings:
            settings[name] = ConfigValue(settings[reference[1]].value, found.place)
    return replace(source, settings=settings)


def flattened(settings: Mapping[str, ConfigValue], before: str = "") -> dict[str, ConfigValue]:
    """The inverse: what stands in a section, as ``section.key``; what is given dotted goes before it."""
    made: dict[str, ConfigValue] = {}
    for name, found in settings.items():
        if isinstance(found.value, dict):
            inner = {key: ConfigValue(value, found.place) for key, value in found.value.items()}
            made = flattened(inner, f"{before}{name}.") | made
        else:
            made[f"{before}{name}"] = found
    return made
