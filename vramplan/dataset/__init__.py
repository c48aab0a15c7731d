"""Data sets: how long their samples are."""

from __future__ import annotations

from vramplan.dataset.lengths import Lengths, Spread, measure
from vramplan.dataset.tokens import counter_for

__all__ = ["Lengths", "Spread", "counter_for", "measure"]
