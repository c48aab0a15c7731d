"""The gradient noise scale: the batch at which noise and signal of a gradient are equally large.

    B_simple = tr(Sigma) / |G|^2          arXiv 1812.06162, section 2.2

with the covariance Sigma of one sample's gradient and the true gradient G. Squared norms of the gradients of b and of
B samples give unbiased estimates of both (the same, appendix A.1):

    |G|^2     = (B |G_B|^2 - b |G_b|^2) / (B - b)
    tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)

Their ratio is biased by far if it is taken step by step; here each is averaged by itself, and the averages are divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from vramplan.adaptive.observation import Observation
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the averages say."""

    noise_scale: float
    """B_simple in samples."""
    trace: float
    """tr(Sigma)."""
    gradient_squared: float
    """|G|^2."""
    relative_std: float
    """Standard deviation of the noise scale as a share of it."""


def single_step(observation: Observation) -> tuple[float, float]:
    """The estimates of (tr(Sigma), |G|^2) of one step, either of which may be negative by chance."""
    small, large = observation.small_batch, observation.large_batch
    small_norm, large_norm = observation.small_norm_squared, observation.large_norm_squared
    assert small is not None
    assert large is not None
    assert small_norm is not None
    assert large_norm is not None
    trace = (small_norm - large_norm) / (1 / small - 1 / large)
    return trace, (large * large_norm - small * small_norm) / (large - small)


class NoiseScale:
    """Moving averages of both estimates, and how sure their ratio is.

    Args:
        half_life: Samples or tokens after which an observation has half its weight.

    Raises:
        ConfigError: for a half-life that is not positive.
    """

    def __init__(self, half_life: int) -> None:
        if half_life <= 0:
            raise ConfigError(f"{setting('half_life', half_life)}: expected 1 or more")
        self.half_life = half_life
        self._weight = self._weight_squared = 0.0
        self._means = [0.0] * 5
        """Weighted sums: of trace, squared gradient, their squares, their product."""

    def add(self, trace: float, square: float, distance: int) -> None:
        """Take in the estimates of a step, `distance` samples or tokens after the last."""
        keep = 0.5 ** (max(1, distance) / self.half_life)
        self._weight = keep * self._weight + 1 - keep
        self._weight_squared = keep**2 * self._weight_squared + (1 - keep) ** 2
        numbers = (trace, square, trace**2, square**2, trace * square)
        self._means = [keep * mean + (1 - keep) * new for mean, new in zip(self._means, numbers, strict=True)]

    def estimate(self) -> Estimate | None:
        """The noise scale; None before both averages are positive and their spread is known."""
        if self._weight == 0:
            return None
        trace, square, trace_2, square_2, product = (mean / self._weight for mean in self._means)
        share = self._weight_squared / self._weight**2  # of one step's variance that is left in the averages
        if trace <= 0 or square <= 0 or share > 1 - 1e-9:
            return None
        # the variance of a ratio of means to first order, each (co)variance without the bias of a weighted sample
        spread = (trace_2 / trace**2 + square_2 / square**2 - 2 * product / (trace * square)) * share / (1 - share)
        return Estimate(trace / square, trace, square, sqrt(max(0.0, spread)))

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers."""
        return {"weight": self._weight, "weight_squared": self._weight_squared, "means": list(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved."""
        self._weight, self._weight_squared = state["weight"], state["weight_squared"]
        self._means = list(state["means"])
