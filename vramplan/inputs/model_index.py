"""Names and aliases of the shipped models: from an index that the wheel's build writes, or from the specs themselves.

The index names each spec with its size. Where these differ from the folder's, it is out of date and not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

INDEX = "index.json"
"""Its name in the folder of the specs; a checkout has none."""
_SUFFIX = ".json"


def spec_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each spec by the model's name, in the order of the folders."""
    sizes = {}
    for organisation in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        with os.scandir(folder / organisation) as entries:
            files = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(_SUFFIX)}
        sizes.update({f"{organisation}/{file.removesuffix(_SUFFIX)}": files[file] for file in sorted(files)})
    return sizes


def read_index(folder: Path) -> Mapping[str, list[str]]:
    """The aliases of each shipped model by its name."""
    sizes = spec_sizes(folder)
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if index["sizes"] == sizes:
            aliases: dict[str, list[str]] = index["aliases"]
            return aliases
    except (OSError, ValueError, LookupError, TypeError):  # none, or no index of ours
        pass
    return {name: _aliases_of(folder, name) for name in sizes}


def _aliases_of(folder: Path, name: str) -> list[str]:
    aliases: list[str] = json.loads((folder / f"{name}{_SUFFIX}").read_bytes())["aliases"]
    return aliases


def write_index(folder: Path, path: Path) -> None:
    """Write the index of the specs in `folder` to `path`, which the wheel has as ``model_specs/index.json``."""
    sizes = spec_sizes(folder)
    aliases = {name: _aliases_of(folder, name) for name in sizes}
    path.write_text(json.dumps({"sizes": sizes, "aliases": aliases}) + "\n", encoding="utf-8")
