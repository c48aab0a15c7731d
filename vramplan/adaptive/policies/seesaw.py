"""Seesaw: at each would-be halving of the learning rate, the batch doubles instead (arXiv 2510.14717).

The paper divides an Adam type's rate by the root of two where the schedule halves it. Under the coupling rule sqrt,
that is what comes out: the schedule's half times the root of two. Where the ladder ends, the schedule goes on alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log2
from typing import Any

from vramplan.adaptive.observation import Observation
from vramplan.adaptive.policies.policy import Wish

ALMOST = 1e-9
"""Of a halving: a rate that is half but for rounding has been halved."""
MOST_HALVINGS = 60


class Seesaw:
    """Asks for twice the first batch for each time that the schedule's rate has halved since its peak."""

    name = "seesaw"
    is_measured = False
    may_shrink = False
    needs_norms = False
    needs: str | None = "learning_rate"

    def __init__(self) -> None:
        self._peak = 0.0
        self._first_batch = 0

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        rate = observation.learning_rate
        assert rate is not None
        self._first_batch = self._first_batch or batch
        self._peak = max(self._peak, rate)
        if rate >= self._peak:
            return None
        halvings = MOST_HALVINGS if rate <= 0 else min(MOST_HALVINGS, floor(log2(self._peak / rate) + ALMOST))
        return Wish(
            float(self._first_batch << halvings),
            f"the schedule's rate {rate:.4g} is down to 1/{1 << halvings} of its peak {self._peak:.4g}",
            {"learning_rate": rate, "peak_learning_rate": self._peak, "halvings": halvings},
        )

    def state_dict(self) -> dict[str, Any]:
        return {"peak": self._peak, "first_batch": self._first_batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._peak, self._first_batch = state["peak"], state["first_batch"]
