"""`vramplan --version`."""

from __future__ import annotations

import sys
from pathlib import Path

from vramplan.version import __version__


def version_line() -> str:
    """The version, and which core runs."""
    from vramplan.memory import passes

    return f"vramplan {__version__} ({passes.describe()})"


def program() -> str:
    """The name by which the command line was started: the `hf` command line calls it hf-vramplan."""
    name = Path(sys.argv[0]).stem
    return name if name == "hf-vramplan" else "vramplan"
