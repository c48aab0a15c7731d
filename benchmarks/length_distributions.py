"""Lengths of samples, in tokens, as three kinds of data sets have them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

Draw = Callable[[random.Random], float]


def _bimodal(draw: random.Random) -> float:
    return draw.gauss(200, 60) if draw.random() < 0.8 else draw.gauss(6000, 700)


KINDS: Mapping[str, tuple[Draw, int]] = {
    "short chat": (lambda draw: draw.lognormvariate(5.2, 0.6), 2048),
    "long tail": (lambda draw: draw.lognormvariate(6.0, 1.1), 8192),
    "bimodal": (_bimodal, 8192),
}
"""Name -> one length, and where longer ones are cut: chat turns (median 181), documents (median 403, some of them
thousands), and short questions among long documents (one of five)."""
SHORTEST = 16


def lengths(kind: str, count: int, seed: int) -> list[int]:
    """So many lengths of a kind."""
    one, longest = KINDS[kind]
    draw = random.Random(f"{kind} {seed}")
    return [min(longest, max(SHORTEST, round(one(draw)))) for _ in range(count)]
