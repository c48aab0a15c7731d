"""The only package that imports torch: real models, traced on fake tensors or probed. Needs ``vramplan[probe]``.

Importing this file does not import torch; :func:`tracing` does.
"""

from __future__ import annotations

from types import ModuleType

from vramplan.torch_backend.dependencies import INSTALL, is_installed, versions


def tracing() -> ModuleType:
    """The module :mod:`vramplan.torch_backend.trace.trace`.

    Raises:
        MissingDependencyError: if a library is missing; names the install command.
    """
    versions()
    from vramplan.torch_backend.trace import trace

    return trace


__all__ = ["INSTALL", "is_installed", "tracing", "versions"]
