"""Reads well-formed command lines; all others are typer's, which says what is wrong with them.

Loading typer and declaring a command to it takes longer than most answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vramplan.cli.parameters import Parameter, Rest

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_EXPANDED = re.compile(r"[*?\[~$%]")
"""Characters in words that typer expands on Windows, as shells do elsewhere."""


class _NotPlainError(Exception):
    """The line is typer's."""


def parse(parameters: Iterable[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    """The value of each parameter by its name, as typer would pass it; None for what typer has to read."""
    parameters = [*parameters]
    try:
        texts = _texts(parameters, words)
        return {parameter.name: _value(parameter, texts[parameter.name]) for parameter in parameters}
    except _NotPlainError:
        return None


def _texts(parameters: Sequence[Parameter], words: Sequence[str]) -> dict[str, list[str]]:
    """What the line gives for each parameter; a flag that is given has an empty text."""
    if os.name == "nt" and any(_EXPANDED.search(word) for word in words):
        raise _NotPlainError
    options = {name: parameter for parameter in parameters for name in parameter.names}
    texts: dict[str, list[str]] = {parameter.name: [] for parameter in parameters}
    positional: list[str] = []
    ends_options = any(isinstance(parameter.described, Rest) for parameter in parameters)
    rest = iter(words)
    for word in rest:
        if word == "--":
            positional += rest
        elif not word.startswith("-") or word == "-":
            positional.append(word)
            positional += rest if ends_options else ()
        else:
            name, has_value, value = word.partition("=")
            option = options.get(name)
            if option is None or (has_value and not name.startswith("--")):
                raise _NotPlainError
            if option.type is bool:
                if has_value:
                    raise _NotPlainError
            elif not has_value:
                value = _next(rest)
            texts[option.name].append(value)
    for parameter in parameters:
        if not parameter.names:
            count = len(positional) if parameter.is_list else 1
            texts[parameter.name], positional = positional[:count], positional[count:]
    if positional:
        raise _NotPlainError
    return texts


def _next(words: Iterable[str]) -> str:
    for word in words:
        return word
    raise _NotPlainError


def _value(parameter: Parameter, texts: Sequence[str]) -> Any:
    if not texts:
        if parameter.is_required:
            raise _NotPlainError
        return parameter.default
    values = [_converted(parameter, text) for text in texts]
    return values if parameter.is_list else values[-1]


def _converted(parameter: Parameter, text: str) -> Any:
    if parameter.type is bool:
        return True
    if parameter.type is str:
        return text
    if parameter.type is Path and _is_plain_path(text):
        return Path(text)
    least = parameter.described.min
    if parameter.type is int and _INTEGER.fullmatch(text) and (least is None or int(text) >= least):
        return int(text)
    if parameter.type is float and _NUMBER.fullmatch(text):
        return float(text)
    raise _NotPlainError


def _is_plain_path(text: str) -> bool:
    """Whether a path is missing or can be read, so that typer would take it."""
    return bool(text) and (not os.path.lexists(text) or os.access(text, os.R_OK))
