"""`vramplan --version`."""

from __future__ import annotations

from vramplan.version import __version__


def version_line() -> str:
    """The version, and which core runs."""
    from vramplan.memory import passes

    return f"vramplan {__version__} ({passes.describe()})"
