"""`vramplan --version`."""

from __future__ import annotations

from vramplan.version import __version__


def version_line() -> str:
    """The version."""
    return f"vramplan {__version__}"
