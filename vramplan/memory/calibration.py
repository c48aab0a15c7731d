"""Facts from measured runs: memory outside of PyTorch's allocator by GPU, and the error of estimates.

``calibration.json`` is made from the ledger and from published runs by ``python -m tests.learn``; nothing is fitted
in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu

CONFIDENCE = 0.9
"""Confidence of a verdict by default."""
_FILE = Path(__file__).with_name("calibration.json")


@cache
def facts() -> Mapping[str, Any]:
    """`contexts`: {bytes, runs, driver} of each GPU; `ledger` and `published`: measured over estimated, run by run."""
    content: Mapping[str, Any] = json.loads(_FILE.read_bytes())
    return content


@dataclass(frozen=True, slots=True)
class Margin:
    """A safety margin for the error of an estimate."""

    share: float
    """Of the estimated need."""
    source: str
    """The runs that it comes from, and the confidence they support."""


def quantile(ratios: Sequence[float], confidence: float) -> tuple[float, float]:
    """(the ratio that a further run stays below with `confidence`, the confidence that so many runs support).

    Split conformal prediction: the k-th smallest of n, k = ceil((n + 1) confidence) (arXiv 2107.07511, section 1);
    beyond n / (n + 1) there is no guarantee, and the largest ratio is returned.

    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.75)
    (1.04, 0.75)
    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.99)
    (1.04, 0.8)
    """
    ordered = sorted(ratios)
    supported = len(ordered) / (len(ordered) + 1)
    k = ceil((len(ordered) + 1) * confidence - 1e-9)
    return ordered[min(k, len(ordered)) - 1], min(confidence, supported)


def margin(confidence: float) -> Margin:
    """The margin that covers the error with `confidence`: from the ledger's runs if they suffice, else published ones.

    Raises:
        ConfigError: for an invalid confidence.
    """
    if not 0 <= confidence < 1:
        raise ConfigError(
            f"{setting('confidence', f'{confidence:g}')}: expected a share from 0 (no margin) up to, not including, 1"
        )
    if confidence == 0:
        return Margin(0.0, "no safety margin")
    ledger, published = facts()["ledger"], facts()["published"]
    suffices = len(ledger) / (len(ledger) + 1) >= confidence or len(ledger) >= len(published)
    ratios, origin = (ledger, "measured") if suffices else (published, "published")
    ratio, supported = quantile(ratios, confidence)
    share = max(0.0, ratio - 1)
    source = f"{supported:.0%} of runs stay within it, by {len(ratios)} {origin} ones"
    if supported < confidence:
        source += f", too few for {confidence:.0%}"
    return Margin(share, f"safety margin {share:.1%}: {source}")


def with_margin(gpu: Gpu, confidence: float) -> Gpu:
    """The GPU with the safety margin of a confidence."""
    needed = margin(confidence)
    margin_bytes = gpu.usable_bytes - int(gpu.usable_bytes / (1 + needed.share))
    return gpu.model_copy(update={"margin_bytes": margin_bytes, "margin_source": needed.source})


def context(gpu: Gpu) -> tuple[int, str] | None:
    """(bytes of CUDA's context as measured on this GPU, the source); None if it was not measured."""
    measured = facts()["contexts"].get(gpu.name)
    if measured is None:
        return None
    return measured["bytes"], f"measured in {measured['runs']} runs, driver {measured['driver']}"
