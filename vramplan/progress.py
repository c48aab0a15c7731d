"""How long work tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""(what is being done, share that is done)"""


def silent(what: str, share: float) -> None:
    """Tells nobody."""
