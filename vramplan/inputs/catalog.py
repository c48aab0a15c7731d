"""Shipped model specs and cards: find them, load them, name the nearest."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from vramplan.errors import UnknownNameError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec

_PACKAGE = Path(__file__).parent.parent
_CARDS = Path(__file__).with_name("gpus.json")


def specs_folder() -> Path:
    """Where the model specs lie: inside an installed package, or beside it in a checkout."""
    inside = _PACKAGE / "model_specs"
    return inside if inside.is_dir() else _PACKAGE.parent / "model_specs"


# -- models ------------------------------------------------------------------------------------------------------------


def model_names() -> list[str]:
    """Hub ids of all shipped models, sorted."""
    folder = specs_folder()
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.json"))
    return sorted(found, key=str.lower)


def load_spec(name: str) -> ModelSpec:
    """The shipped spec of exactly this Hub id.

    Shipped files are validated by the tests, all of them, and not again here: that would double the time of an answer.
    """
    raw = json.loads((specs_folder() / f"{name}.json").read_bytes())
    return ModelSpec.model_construct(None, **_frozen(raw))


def _frozen(raw: dict[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that the types want."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}


@cache
def aliases() -> dict[str, str]:
    """Every alias of a shipped model with the model's own name."""
    folder, found = specs_folder(), {}
    for path in sorted(folder.glob("*/*.json")):
        raw = json.loads(path.read_bytes())
        found.update(dict.fromkeys(raw["aliases"], raw["name"]))
    return found


def find_model(name: str) -> ModelSpec | None:
    """The shipped model called `name` (case does not matter, the organisation may be left out where that is clear)."""
    for known in (dict.fromkeys(model_names()), aliases()):
        table = {**{candidate: candidate for candidate in known}, **{k: v for k, v in known.items() if v}}
        matches = _matches(name, table)
        if len(set(matches.values())) == 1:
            asked, own = next(iter(matches.items()))
            spec = load_spec(own)
            config = {**spec.config, **spec.alias_configs.get(asked, {})}
            return spec if asked == own else spec.model_copy(update={"name": asked, "config": config})
        if matches:
            raise UnknownNameError("model", name, matches, "the short name is shared by several organisations")
    return None


def _matches(name: str, table: dict[str, str]) -> dict[str, str]:
    wanted = name.lower()
    exact = {key: own for key, own in table.items() if key.lower() == wanted}
    return exact or {key: own for key, own in table.items() if key.lower().rpartition("/")[2] == wanted}


def known_model_names() -> list[str]:
    """All names a shipped model answers to."""
    return [*model_names(), *aliases()]


# -- cards -------------------------------------------------------------------------------------------------------------


@cache
def _card_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_CARDS.read_bytes())
    return rows


def _plain(name: str) -> str:
    """A card's name without case, spaces, makers and product lines: "NVIDIA GeForce RTX 4090" is "rtx4090"."""
    return re.sub(r"[^a-z0-9]|nvidia|geforce|tesla|amd|instinct|radeon", "", name.lower())


def _answers_to(row: dict[str, Any]) -> set[str]:
    names = {_plain(name) for name in (row["name"], row["title"], *row["aliases"])}
    return names | {name.removeprefix("rtx") for name in names if re.fullmatch(r"rtx\d{4}\w*", name)}


def find_gpu(name: str) -> Gpu:
    """The card called `name`, by its short name, its maker's name or a usual abbreviation.

    Raises:
        UnknownNameError: with the nearest names.
    """
    wanted = _plain(name)
    for row in _card_rows():
        if wanted in _answers_to(row):
            return _card(row)
    raise UnknownNameError("card", name, card_names(), "`vramplan gpus` lists all")


def _card(row: dict[str, Any]) -> Gpu:
    """A shipped row, validated by the tests, as a card."""
    return Gpu.model_construct(None, **_frozen(row))


def card_names() -> list[str]:
    """Short names and aliases of all cards."""
    return [name for row in _card_rows() for name in (row["name"], *row["aliases"])]


def all_gpus() -> list[Gpu]:
    """Every card of the catalogue, in its order."""
    return [_card(row) for row in _card_rows()]
