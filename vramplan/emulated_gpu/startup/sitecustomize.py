"""Python loads this file at start on an emulated GPU, since its folder comes first in PYTHONPATH.

It waits until torch is imported, and imports the sitecustomize that would have been loaded otherwise.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


class _Loader(importlib.abc.Loader):
    """Torch's own loader, and :func:`vramplan_values.start` after it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        import vramplan_values

        vramplan_values.start()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # others may look without importing
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _load_next() -> None:
    """The sitecustomize of another folder, such as a distribution's."""
    paths = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("VRAMPLAN_EMULATED_NAME"):
    sys.meta_path.insert(0, _Finder())
_load_next()
