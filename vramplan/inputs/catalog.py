"""Shipped model specs and GPUs: find them by name, load them, suggest the nearest names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vramplan.errors import UnknownNameError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_index import read_index
from vramplan.inputs.model_spec import ModelSpec

_PACKAGE = Path(__file__).parent.parent
_GPUS = Path(__file__).with_name("gpus.json")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""The form of names on the Hub."""


def specs_folder() -> Path:
    """Folder of the model specs: inside an installed package, or beside it in a checkout."""
    inside = _PACKAGE / "model_specs"
    return inside if inside.is_dir() else _PACKAGE.parent / "model_specs"


# -- models ------------------------------------------------------------------------------------------------------------


@cache
def _aliases_by_name() -> Mapping[str, list[str]]:
    return read_index(specs_folder())


def model_names() -> list[str]:
    """Hub ids of all shipped models, sorted."""
    return sorted(_aliases_by_name(), key=str.lower)


def load_spec(name: str) -> ModelSpec:
    """The shipped spec of exactly this Hub id.

    The tests validate all shipped files; validating them again here would double the time of a command.
    """
    raw = json.loads((specs_folder() / f"{name}.json").read_bytes())
    return ModelSpec.model_construct(None, **_frozen(raw))


def _frozen(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields with JSON's lists as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}


def aliases() -> dict[str, str]:
    """The name of a shipped model by each of its aliases."""
    return {alias: name for name, names in _aliases_by_name().items() for alias in names}


def find_model(name: str) -> ModelSpec | None:
    """The shipped model called `name` in any case; the organisation may be left out if that is unambiguous."""
    for names in ({shipped: shipped for shipped in model_names()}, aliases()):
        matches = _matches(name, names)
        if len(set(matches.values())) == 1:
            alias, shipped = next(iter(matches.items()))
            spec = load_spec(shipped)
            config = {**spec.config, **spec.alias_configs.get(alias, {})}
            return spec if alias == shipped else spec.model_copy(update={"name": alias, "config": config})
        if matches:
            raise UnknownNameError("model", name, matches, "the short name is shared by several organisations")
    return None


def _matches(name: str, names: dict[str, str]) -> dict[str, str]:
    """The entries of `names` whose key is `name`, else those whose key without the organisation is."""
    lower = name.lower()
    exact = {alias: shipped for alias, shipped in names.items() if alias.lower() == lower}
    return exact or {alias: shipped for alias, shipped in names.items() if alias.lower().rpartition("/")[2] == lower}


_TOKENS = re.compile(r"[a-z]+|\d+")
_UNIMPORTANT = frozenset("meta instruct it chat base hf pt preview".split())  # noqa: SIM905
_DATE = re.compile(r"(?<=[-_])(?:0[1-9]|1[0-2]|2[3-9])\d\d(?=[-_]|$)")
"""Of a release in the name of a checkpoint: 2407, 0924."""


def find_model_as_typed(name: str) -> ModelSpec | None:
    """The shipped model that a name typed by hand means: llama-3.3-70b, "llama 3 8b", mistral-nemo.

    Separators, dates of releases and words such as "instruct" may be left out if one model is left.

    Raises:
        UnknownNameError: if several are, naming them.
    """
    names = {shipped: shipped for shipped in model_names()} | aliases()
    wanted = _bare(name)
    matches = {alias: shipped for alias, shipped in names.items() if _bare(alias.rpartition("/")[2]) == wanted}
    shipped = {*matches.values()}
    if len(shipped) > 1:
        raise UnknownNameError("model", name, shipped, "several models are called so")
    return find_model(next((alias for alias in matches if alias in shipped), min(matches))) if matches else None


def _bare(name: str) -> str:
    """The words and numbers of a model's name that tell it from others, joined."""
    return "".join(name_parts(name))


def name_parts(name: str, parts: re.Pattern[str] = _TOKENS) -> list[str]:
    """The words and numbers of a model's name that tell it from others."""
    return [part for part in parts.findall(_DATE.sub("", name.lower())) if part not in _UNIMPORTANT]


def known_model_names() -> list[str]:
    """Names and aliases of all shipped models."""
    return [*model_names(), *aliases()]


def names_with_and_without_organisation() -> list[str]:
    """The same, and each without the organisation."""
    names = known_model_names()
    return [*names, *(name.rpartition("/")[2] for name in names)]


# -- GPUs --------------------------------------------------------------------------------------------------------------


@cache
def _gpu_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_GPUS.read_bytes())
    return rows


def plain_gpu_name(name: str) -> str:
    """A GPU's name without case, spaces, vendors and product lines: "NVIDIA GeForce RTX 4090" is "rtx4090"."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla|amd|instinct|radeon", "", name.lower())


def _names_of(row: dict[str, Any]) -> set[str]:
    names = {plain_gpu_name(name) for name in (row["name"], row["title"], *row["aliases"])}
    return names | {name.removeprefix("rtx") for name in names if re.fullmatch(r"rtx\d{4}\w*", name)}


@cache
def _gpus_by_short_name() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _gpu_rows()}


@cache
def _gpus_by_plain_name() -> dict[str, dict[str, Any]]:
    """By each name; the first GPU of several that share one."""
    return {name: row for row in reversed(_gpu_rows()) for name in _names_of(row)}


def find_gpu(name: str) -> Gpu:
    """The GPU called `name`, by its short name, its manufacturer's name or a usual abbreviation.

    Raises:
        UnknownNameError: with the nearest names.
    """
    row = _gpus_by_short_name().get(name) or _gpus_by_plain_name().get(plain_gpu_name(name))
    if row is not None:
        return _gpu(row)
    hint = f"a size is {name.strip()}GB; " if name.strip().isdecimal() else ""
    raise UnknownNameError("GPU", name, gpu_names(), f"{hint}`vramplan gpus` lists all")


def _gpu(row: dict[str, Any]) -> Gpu:
    """A GPU from a shipped row, which the tests validate."""
    return Gpu.model_construct(None, **_frozen(row))


def gpu_names() -> list[str]:
    """Short names and aliases of all GPUs."""
    return [name for row in _gpu_rows() for name in (row["name"], *row["aliases"])]


def all_gpus() -> list[Gpu]:
    """All GPUs of the catalogue, in its order."""
    return [_gpu(row) for row in _gpu_rows()]
