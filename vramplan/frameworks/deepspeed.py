"""DeepSpeed's JSON: alone, or named by the others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.files import beside, from_json, from_yaml, read_text
from vramplan.frameworks.source import UNSET, Keys, Setting, Source

PRESET = re.compile(r"(?:default-)?zero-?([0123])(?:[-_]offload)?")
"""ms-swift's names for the configurations that it ships."""


def referenced(keys: Keys, folder: Path | None = None) -> dict[str, Any]:
    """What the key `deepspeed` brings: a preset, a file, or JSON in place.

    Raises:
        ConfigError: for a file that is not there, or broken.
        UnsupportedError: for what is not modelled in it.
    """
    found = keys.setting("deepspeed")
    if found is None:
        return {}
    inside = _load(found, keys)
    if isinstance(inside, str):
        stage, offload = int(inside[0]), inside.endswith("offload")
        if offload:
            raise UnsupportedError(f"{found.place}: deepspeed: {found.value}: offloading is not modelled yet")
        return _stage(stage, found)
    return fields(Keys(Source(inside, {}, (), str(found.value)), "DeepSpeed"), found)


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


def _load(found: Setting, keys: Keys) -> dict[str, Setting] | str:
    if isinstance(found.value, dict):
        return {name: Setting(value, f"{found.place}: {name}") for name, value in found.value.items()}
    word = str(found.value).strip()
    if word in UNSET:
        return "0"
    preset = PRESET.fullmatch(word)
    if preset is not None:
        return preset[1] + ("offload" if "offload" in word else "")
    if word.startswith("{"):
        return from_json(word, found.place)
    path = beside(word, Path(keys.source.where).parent)
    if path is None:
        raise ConfigError(f"{found.place}: deepspeed: no file {' '.join(word.split())[:80]}")
    text = read_text(path)
    try:
        return from_json(text, str(path))
    except ConfigError:
        bare = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)  # annotated tutorials
        try:
            json.loads(bare)
        except ValueError:
            return from_yaml(text, str(path)) if not text.lstrip().startswith("{") else from_json(text, str(path))
        return from_json(bare, str(path))
