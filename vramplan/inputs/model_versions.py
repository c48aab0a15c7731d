"""Models whose names differ from a typed one by what it leaves out: a version (llama-8b), or a size (llama3)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vramplan.errors import nearest_names
from vramplan.inputs.catalog import aliases, model_names, name_parts, names_with_and_without_organisation

_SIZE = re.compile(r"[a-z]?\d+(?:x\d+)?(?:[._]\d+)?[bm]")
_WORDS = re.compile(rf"{_SIZE.pattern}(?![a-z0-9])|[a-z]+|\d+")
"""Sizes with their unit (8b, 8x7b, 0.5b), words, and numbers of versions."""
MOST = 3
"""Names that an error suggests."""


def only_version(name: str) -> str | None:
    """The one shipped model that a name without a version means; None if there are several, or may be others.

    Only of a family whose first version, which bears no number, is shipped too: gemma-9b can only be Gemma 2, while
    qwen-1.8b is a model of its own that is not listed.
    """
    found = {shipped for _, shipped in _alike(name)[0]}
    family = _family(name_parts(name, _WORDS))
    if len(found) != 1 or not any(_family(words) == family for words in _words_by_name().values()):
        return None
    return found.pop()


def nearest_models(name: str) -> tuple[str, ...]:
    """Names for an error: versions of what was typed, the newest first; else sizes; else what looks like it."""
    alike = next(filter(None, _alike(name)), [])
    names = [one.rpartition("/")[2] for one, _ in alike]
    return tuple([*dict.fromkeys(names)][:MOST]) or nearest_names(name, names_with_and_without_organisation(), MOST)


def _alike(name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(a name, its model) of each model whose name has all words of this one: its versions, and its sizes."""
    wanted = name_parts(name, _WORDS)
    versions: dict[str, str] = {}
    sizes: dict[str, str] = {}
    shipped_by_name = {shipped: shipped for shipped in model_names()} | aliases()
    words_by_name = _words_by_name()
    for one in sorted(words_by_name, key=lambda one: (_age(words_by_name[one]), len(one), one)):
        more = _more(words_by_name[one], wanted)
        rest = [word for word in more or () if not word.isdecimal() and word != "v"]
        if more is None or not all(map(_SIZE.fullmatch, rest)):
            continue
        shipped = shipped_by_name[one]
        found = sizes if rest else versions
        found.setdefault(shipped, shipped if _more(words_by_name[shipped], wanted) is not None else one)
    return [(one, shipped) for shipped, one in versions.items()], [(one, shipped) for shipped, one in sizes.items()]


def _more(words: Sequence[str], wanted: Sequence[str]) -> list[str] | None:
    """The words beside those that are wanted; None if these do not come in their order."""
    rest, more = [*wanted], list[str]()
    for word in words:
        if rest and word == rest[0]:
            rest.pop(0)
        else:
            more.append(word)
    return None if rest else more


def _words_by_name() -> dict[str, list[str]]:
    return {name: name_parts(name.rpartition("/")[2], _WORDS) for name in (*model_names(), *aliases())}


def _age(words: Sequence[str]) -> tuple[int, ...]:
    """Sorts newer versions before older ones."""
    numbers = [-int(word) for word in words if word.isdecimal()]
    return (*numbers, 0, 0, 0, 0)[:4]


def _family(words: Sequence[str]) -> list[str]:
    return [word for word in words if not _SIZE.fullmatch(word)]


__all__ = ["nearest_models", "only_version"]
