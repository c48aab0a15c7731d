"""Gradient noise scale: the batch follows the noise of the gradient (arXiv 1812.06162)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.adaptive.noise_scale import NoiseScale, single_step
from vramplan.adaptive.observation import Observation, Unit, check_unit
from vramplan.adaptive.policies.policy import Wish
from vramplan.errors import ConfigError, setting

MOST_SPREAD = 0.3
"""Relative standard deviation of the noise scale above which nothing is asked for."""


class NoiseScalePolicy:
    """Asks for `share` of the noise scale, once it is known well enough.

    Args:
        half_life: Samples or tokens after which an observation has half its weight.
        unit: samples or tokens: of the half-life.
        share: Of the noise scale that the batch is to reach. At 1, half of each step's progress is lost to noise
            (arXiv 1812.06162, section 2.2); with less, more steps are done and fewer samples wasted.
        most_spread: Relative standard deviation of the noise scale above which nothing is asked for.
        may_shrink: Whether the batch may become smaller again.

    Raises:
        ConfigError: for a number that is not positive.
    """

    name = "noise-scale"
    is_measured = True
    needs_norms = True
    needs: str | None = None

    def __init__(
        self,
        half_life: int,
        unit: Unit = "samples",
        share: float = 1.0,
        most_spread: float = MOST_SPREAD,
        may_shrink: bool = False,
    ) -> None:
        check_unit(unit)
        for name, number in (("share", share), ("most_spread", most_spread)):
            if not 0 < number < float("inf"):
                raise ConfigError(f"{setting(name, number)}: expected a positive number")
        self.average = NoiseScale(half_life)
        self.unit, self.share, self.most_spread, self.may_shrink = unit, share, most_spread, may_shrink
        self._position = 0

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        position = observation.position(self.unit)
        self.average.add(*single_step(observation), position - self._position)
        self._position = position
        estimate = self.average.estimate()
        if estimate is None or estimate.relative_std > self.most_spread:
            return None
        return Wish(
            self.share * estimate.noise_scale,
            f"noise scale {estimate.noise_scale:.4g} samples, known to {estimate.relative_std:.0%}, at batch {batch}",
            {
                "noise_scale": estimate.noise_scale,
                "trace": estimate.trace,
                "gradient_squared": estimate.gradient_squared,
                "relative_std": estimate.relative_std,
                "share": self.share,
            },
        )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position, **self.average.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]
        self.average.load_state_dict(state)
