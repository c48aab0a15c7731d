"""What measured runs have taught: memory outside torch, card by card, and how far estimates miss.

``calibration.json`` is made from the ledger and from published runs by ``python -m tests.learn``; nothing is fitted
in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError
from vramplan.inputs.gpu import Gpu

CONFIDENCE = 0.9
"""How sure a verdict is where nothing is said."""
_FILE = Path(__file__).with_name("calibration.json")


@cache
def facts() -> Mapping[str, Any]:
    """`contexts`: {bytes, runs, driver} of each card; `ledger` and `published`: measured over estimated, run by run."""
    found: Mapping[str, Any] = json.loads(_FILE.read_bytes())
    return found


@dataclass(frozen=True, slots=True)
class Margin:
    """What is kept free for what an estimate may miss."""

    share: float
    """Of the estimate."""
    source: str
    """Which runs vouch for it, and how far."""


def quantile(ratios: Sequence[float], confidence: float) -> tuple[float, float]:
    """The ratio that one more run stays below with `confidence`, and the confidence that so many runs can vouch for.

    Split conformal prediction: the k-th smallest of n, k = ceil((n + 1) confidence) (arXiv 2107.07511, section 1);
    beyond n / (n + 1) nothing is promised, and the largest is taken.

    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.75)
    (1.04, 0.75)
    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.99)
    (1.04, 0.8)
    """
    ordered = sorted(ratios)
    most = len(ordered) / (len(ordered) + 1)
    k = ceil((len(ordered) + 1) * confidence - 1e-9)
    return ordered[min(k, len(ordered)) - 1], min(confidence, most)


def margin(confidence: float) -> Margin:
    """How much to keep free to be right with `confidence`: from our own runs where they suffice, else published ones.

    Raises:
        ConfigError: for a confidence that is none.
    """
    if not 0 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence:g}: expected a share from 0 (no margin) up to, not including, 1")
    if confidence == 0:
        return Margin(0.0, "no safety margin")
    own, others = facts()["ledger"], facts()["published"]
    enough = len(own) / (len(own) + 1) >= confidence
    ratios, whose = (own, "measured") if enough or len(own) >= len(others) else (others, "published")
    ratio, vouched = quantile(ratios, confidence)
    share = max(0.0, ratio - 1)
    said = f"{vouched:.0%} of runs stay within it, by {len(ratios)} {whose} ones"
    if vouched < confidence:
        said += f", too few for {confidence:.0%}"
    return Margin(share, f"safety margin {share:.1%}: {said}")


def with_margin(card: Gpu, confidence: float) -> Gpu:
    """The card, with as much of it kept free as `confidence` asks for."""
    found = margin(confidence)
    kept = card.usable_bytes - int(card.usable_bytes / (1 + found.share))
    return card.model_copy(update={"margin_bytes": kept, "margin_source": found.source})


def context(card: Gpu) -> tuple[int, str] | None:
    """Memory outside torch's allocator as measured on this card, and where from; None where nobody measured it."""
    known = facts()["contexts"].get(card.name)
    if known is None:
        return None
    return known["bytes"], f"measured in {known['runs']} runs, driver {known['driver']}"
