"""Progress of long work, as a callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""(description of the current work, share that is done)"""


def silent(what: str, share: float) -> None:
    """A callback that ignores progress."""
