"""The torch room: real model classes, traced on fake tensors. Needs the extra ``vramplan[probe]``.

Importing this file loads no torch; :func:`tracing` does.
"""

from __future__ import annotations

from types import ModuleType

from vramplan.torch_backend.dependencies import INSTALL, is_installed, versions


def tracing() -> ModuleType:
    """The module that traces.

    Raises:
        MissingDependencyError: where a library is missing; names the install command.
    """
    versions()
    from vramplan.torch_backend.trace import trace

    return trace


__all__ = ["INSTALL", "is_installed", "tracing", "versions"]
