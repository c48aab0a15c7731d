"""A model by name: shipped, in a folder, or on the Hub."""

from __future__ import annotations

import re

from vramplan.bounded_read import expand_home, is_file, is_folder
from vramplan.errors import SpecError, UnknownNameError, UnsupportedError, setting
from vramplan.inputs.catalog import HUB_ID, find_model, find_model_as_typed, load_spec
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec

OTHER_FILES = (".yaml", ".yml", ".toml", ".sh", ".bash", ".py", ".ipynb")
"""Files that describe a training run, which people give in the place of a model."""
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve_model(name: str, typed: bool = False) -> ModelSpec:
    """The model called `name`: a shipped name, a folder, a config.json or a Hub id.

    A name that the user `typed` as the model, and no file names, may also be ``package.module:function``, whose code a
    trace runs, or leave out what does not tell a shipped model from others: llama-3.3-70b.

    Raises:
        SpecError: if a configuration is broken.
        UnsupportedError: for an import path that was not typed.
        UnknownNameError: if it is neither a shipped model nor a path nor a Hub id; lists the nearest names.
        HubError: if the Hub has no such model, the model is gated, or the Hub does not answer.
    """
    if not name.strip():
        raise UnknownNameError("model", name, (), "give a name, a folder or a config.json")
    if _IMPORT_PATH.fullmatch(name):
        if not typed:
            raise UnsupportedError(
                f"{name}: code of your own is never run because a file names it; if you trust it, give"
                f" {setting('model', name)} yourself"
            )
        return ModelSpec(name=name, model_type=IMPORT_PATH, config={})
    path = expand_home(name)
    if path.suffix.lower() in OTHER_FILES and is_file(path):
        raise SpecError(f"{name} is no model's config.json; `vramplan check {name}` reads training configurations")
    if is_folder(path) or is_file(path):
        from vramplan.inputs.model_folder import from_config_file, from_folder

        return from_folder(path) if is_folder(path) else from_config_file(path)
    shipped = find_model(name)
    if shipped is not None:
        return shipped
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        raise SpecError(f"{name}: no such file or folder")
    if not HUB_ID.fullmatch(name):
        similar = find_model_as_typed(name) if typed else None
        if similar is not None:
            return similar
        from vramplan.inputs.model_versions import nearest_models, only_version

        version = only_version(name) if typed else None
        if version is not None:
            return load_spec(version)
        hint = "give a Hub id (org/name), a folder or a config.json"
        raise UnknownNameError("model", name, (), hint, nearest=nearest_models(name))
    from vramplan.inputs import hub

    return hub.from_hub(name)
