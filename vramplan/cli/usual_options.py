"""Options and values as people type them: ``--max-length 4k``, ``--qlora``, ``lora_r=16``, ``-h``.

Read only where a line is not well-formed, so that others pay nothing for it.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from vramplan.cli.options import say, spell_flag
from vramplan.cli.parameters import Parameter, Rest
from vramplan.errors import ConfigError, setting
from vramplan.inputs.usual_names import (
    NO_EFFECT,
    SAME,
    SWITCHES,
    THOUSAND,
    TWO_MEANINGS,
    VALUES,
    does_not_matter,
    plain,
    two_meanings,
)
from vramplan.units import in_digits, ungrouped

_PAIR = re.compile(r"([A-Za-z]\w*)=(.+)", re.DOTALL)
"""A setting without dashes: lora_r=16."""
DATASET = "--dataset: give --lengths SHORTEST-LONGEST here; `vramplan check FILE --dataset DATA` measures the samples"
FOUND_BY_SUGGEST = ("micro_batch_size", "gradient_accumulation_steps")
"""Settings that people give to a command that looks for them."""


def as_declared(words: Sequence[str], parameters: Sequence[Parameter]) -> list[str]:
    """The words of a line after its command, with options and values in the spelling of `parameters`.

    What is not known stays as it is, for the command line's parser to refuse.

    Raises:
        ConfigError: for an option that may mean two, or that another command has.
    """
    options = {name: parameter for parameter in parameters for name in parameter.names}
    if any(isinstance(parameter.described, Rest) for parameter in parameters):
        return [*words]
    own: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "--":
            return [*own, word, *rest]
        if plain(word.partition("=")[0]) == "gpus" and "--gpu" in options and "--gpus" not in options:
            has_name = any(other.partition("=")[0] in ("--gpu", "gpu") for other in words)
            word = word.replace("gpus", "num-gpus" if has_name else "gpu", 1)
        declared = _declared(word, rest, options)
        _refuse_second(word, declared, own, options)
        own += declared
    return own


def _refuse_second(word: str, declared: Sequence[str], before: Sequence[str], options: Mapping[str, Parameter]) -> None:
    """Refuse a word that sets what another word has set to another value.

    Raises:
        ConfigError: naming both.
    """
    for name, value in zip(declared, [*declared[1:], ""], strict=False):
        earlier = [before[place : place + 2] for place, other in enumerate(before) if other == name]
        if name in options and not options[name].is_list and any(pair[1:] != [value] for pair in earlier):
            raise ConfigError(f"{word} sets {name} to {value}, and so does another option, to {earlier[0][1]}")


def _declared(word: str, rest: deque[str], options: Mapping[str, Parameter]) -> list[str]:
    """A word, with the next of `rest` if it takes it, as `options` spell it."""
    if word == "-h" and word not in options:
        return ["--help"]
    pair = None if word.startswith("-") else _PAIR.fullmatch(word)
    if pair is None and not word.startswith("--"):
        return [word]
    name, has_value, value = (pair[1], "=", pair[2]) if pair else word.partition("=")
    dashed = f"--{plain(name).replace('_', '-')}"
    if dashed in options:
        return _option(dashed, options[dashed], value if has_value else None, rest)
    if dashed == "--dataset" and "--lengths" in options:
        raise ConfigError(DATASET)
    if plain(name) in NO_EFFECT:
        if not has_value and rest and not rest[0].startswith("--"):
            rest.popleft()
        say(f"vramplan: {does_not_matter(dashed)}", file=sys.stderr)
        return []
    field = _field(plain(name), options)
    if field == "model":
        return [value if has_value else rest.popleft() if rest else ""]
    if field is not None:
        option = spell_flag(field, "")
        values = _option(option, options[option], value if has_value else None, rest)
        return [values[0], *(VALUES.get((field, text.lower()), text) for text in values[1:])]
    switch = SWITCHES.get(plain(name))
    if switch is None:
        return [word]
    words = [word]
    if not has_value and rest and (rest[0].lower() in switch or "true" not in switch):
        value = rest.popleft()
        words += [value]
    fields = switch.get((value or "true").lower())
    return words if fields is None else _flags(fields, options, words)


def _flags(fields: Mapping[str, str], options: Mapping[str, Parameter], words: list[str]) -> list[str]:
    """The options that set these fields; `words` if the command has not all of them."""
    flags = [(spell_flag(field, ""), value) for field, value in fields.items()]
    return [text for flag in flags for text in flag] if all(flag in options for flag, _ in flags) else words


def _field(name: str, options: Mapping[str, Parameter]) -> str | None:
    """The setting that a name means in a command with these options; None if it means none of them.

    Raises:
        ConfigError: if it may mean two, or one that `vramplan estimate` alone takes.
    """
    if name in TWO_MEANINGS:
        meanings = [(field, text) for field, text in TWO_MEANINGS[name] if spell_flag(field, "") in options]
        if len(meanings) > 1:
            raise ConfigError(two_meanings(f"--{name.replace('_', '-')}", meanings))
        return meanings[0][0] if meanings else None
    field = SAME.get(name)
    if field is None or field == "model" or spell_flag(field, "") in options:
        return field
    if field in FOUND_BY_SUGGEST and "--global-batch" in options:
        raise ConfigError(
            f"--{name.replace('_', '-')} is what suggest looks for; `vramplan estimate` takes {setting(field)}"
        )
    if field == "global_batch" and "--micro-batch" in options:
        raise ConfigError(f"--{name.replace('_', '-')}: `vramplan suggest` finds the micro-batch for it")
    return None


def _option(name: str, parameter: Parameter, value: str | None, rest: deque[str]) -> list[str]:
    """An option and its value, which is the next of `rest` if it is not part of the word."""
    if parameter.type is bool:
        return [name] if value is None or value.lower() == "true" else [f"{name}={value}"]
    if value is None and not rest:
        return [name]
    text = rest.popleft() if value is None else value
    if parameter.type is int:
        text = ungrouped(text)
    thousand = next((size for field, size in THOUSAND.items() if spell_flag(field, "") == name), None)
    return [name, text if thousand is None else in_digits(text, thousand)]
