"""Norm test: the batch grows when the gradient's variance is large against the gradient itself.

    tr(Sigma) / B <= eta^2 |G_B|^2

is tested at each step; where it does not hold, the batch that would meet it is asked for (arXiv 2402.11215; 2412.21124
with the variance of the gradients of ranks or micro-batches, as here).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.adaptive.noise_scale import single_step
from vramplan.adaptive.observation import Observation
from vramplan.adaptive.policies.policy import Wish
from vramplan.errors import ConfigError, setting


class NormTest:
    """Asks for the batch that meets the test.

    Args:
        eta: The most that the gradient's standard deviation may be of its norm, between 0 and 1 in the papers.

    Raises:
        ConfigError: for an `eta` that is not positive.
    """

    name = "norm-test"
    is_measured = True
    may_shrink = False
    needs_norms = True
    needs: str | None = None

    def __init__(self, eta: float = 0.5) -> None:
        if not 0 < eta < float("inf"):
            raise ConfigError(f"{setting('eta', eta)}: expected a positive number")
        self.eta = eta

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        trace, _ = single_step(observation)
        norm_squared = observation.large_norm_squared
        assert norm_squared is not None
        needed = trace / (self.eta**2 * norm_squared)
        if needed <= batch:
            return None
        return Wish(
            needed,
            f"the norm test at eta {self.eta:g} asks for {needed:.4g} samples, at batch {batch}",
            {"needed": needed, "trace": trace, "norm_squared": norm_squared, "eta": self.eta},
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
