"""Data sets: how long their samples are."""

from __future__ import annotations

from vramplan.inputs.dataset.length_statistics import Lengths, Spread, measure
from vramplan.inputs.dataset.token_counts import counter_for

__all__ = ["Lengths", "Spread", "counter_for", "measure"]
