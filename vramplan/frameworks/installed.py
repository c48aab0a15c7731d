"""The version of a package that is installed here."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from importlib.machinery import PathFinder

METADATA = (".dist-info", ".egg-info")
"""Endings of the folders and files in which installers describe a package: ``name-version.dist-info``."""


def installed_version(package: str) -> str | None:
    """The installed version; None if the package is not installed."""
    names = _described(tuple(sys.path))
    if names is not None and _normalized(package) not in names:
        return None
    from importlib.metadata import PackageNotFoundError, version  # takes longer to load than to look as above

    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _described(folders: tuple[str, ...]) -> set[str] | None:
    """Names of all packages that are described in these folders; None if others may be found elsewhere."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    names: set[str] = set()
    for folder in folders:
        if os.path.isfile(folder) or folder.endswith(".egg"):  # an archive, or a package beside its description
            return None
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        described = (os.path.splitext(entry)[0] for entry in entries if entry.endswith(METADATA))
        names |= {_normalized(entry.partition("-")[0]) for entry in described}
    return names


def _normalized(name: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
