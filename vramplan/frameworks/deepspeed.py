"""DeepSpeed's JSON: alone, or named by the others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.files import beside, from_json, mapping, read_text
from vramplan.frameworks.source import Keys, Setting, Source

PRESET = re.compile(r"(?:default-)?zero-?([0123])([-_]offload)?")
"""ms-swift's names for the configurations that it ships."""


def referenced(keys: Keys) -> dict[str, Any]:
    """What the key `deepspeed` brings: a preset, a file, or JSON in place.

    Raises:
        ConfigError: for a file that is not there, or broken.
        UnsupportedError: for what is not modelled in it.
    """
    found = keys.setting("deepspeed")
    if found is None:
        return {}
    preset = PRESET.fullmatch(str(found.value).strip())
    if preset is not None:
        if preset[2]:
            raise UnsupportedError(f"{found.place}: deepspeed: {found.value}: offloading is not modelled yet")
        return _stage(int(preset[1]), found)
    return fields(Keys(Source(_load(found, keys), {}, (), str(found.value)), "DeepSpeed"), found)


def fields(own: Keys, found: Setting) -> dict[str, Any]:
    """The fields of a job in a DeepSpeed configuration."""
    zero = own.part("zero_optimization")
    if zero is None:
        return _stage(0, found)
    for name in ("offload_optimizer", "offload_param"):
        part = zero.part(name)
        if part is not None and part.text("device", default="none") != "none":
            raise UnsupportedError(f"{own.source.where}: zero_optimization.{name}: offloading is not modelled yet")
    return _stage(zero.count("stage", default=0, least=0), found)


def _stage(stage: int, found: Setting) -> dict[str, Any]:
    if stage not in (1, 2, 3):
        raise UnsupportedError(f"{found.place}: deepspeed: ZeRO stage {stage} is not modelled")
    return {"strategy": f"zero{stage}"}


def _load(found: Setting, keys: Keys) -> dict[str, Setting]:
    """A mapping in place, JSON in place, or a file's, lines of comments left out as in annotated tutorials."""
    if isinstance(found.value, dict):
        return {name: Setting(value, f"{found.place}: {name}") for name, value in found.value.items()}
    word = str(found.value).strip()
    if word.startswith("{"):
        return from_json(word, found.place)
    path = beside(word, Path(keys.source.where).parent)
    if path is None:
        raise ConfigError(f"{found.place}: deepspeed: no file {' '.join(word.split())[:80]}")
    return mapping(re.sub(r"^\s*//.*$", "", read_text(path), flags=re.MULTILINE), str(path))
