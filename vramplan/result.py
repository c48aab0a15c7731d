"""What answers have in common: one line in Python, a picture in notebooks."""

from __future__ import annotations

from importlib import import_module


class Result:
    """An answer. Its texts come from :mod:`vramplan.render.notebook`, which is loaded if they are asked for."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(import_module("vramplan.render.notebook").line(self))

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        return str(import_module("vramplan.render.notebook").html(self))
