"""Data sets: the lengths of their samples in tokens."""

from __future__ import annotations

from vramplan.inputs.dataset.length_statistics import LengthDistribution, Lengths, measure
from vramplan.inputs.dataset.token_counts import counter_for

__all__ = ["LengthDistribution", "Lengths", "counter_for", "measure"]
