"""Tables: many models on many cards, each cell what `suggest` or `estimate` says of it."""

from __future__ import annotations

from vramplan.tables.cells import Cell, Table, fill
from vramplan.tables.sheet import METHODS, SHOWN, Sheet, sheet

__all__ = ["METHODS", "SHOWN", "Cell", "Sheet", "Table", "fill", "sheet"]
