"""Whether a run's loss is healthy: spikes are not used, and no batch grows while the loss rises."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

SLOW, FAST = 0.02, 0.1
"""Weight of a new loss in the slow and the fast moving average: about the last 100 and 20 steps."""
ENOUGH = 20
"""Losses before which nothing is said."""
SPIKE = 6.0
"""Standard deviations above the fast average."""
RISE = 3.0
"""Standard errors by which the fast average is above the slow one."""


class LossWatch:
    """Moving averages of the loss over steps.

    Its variance is taken from the differences of consecutive losses (von Neumann 1941), which a trend hardly changes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = self.slow = self.fast = self.variance = 0.0

    def is_spike(self, loss: float) -> bool:
        """Whether a loss is far above those before it."""
        return self.count >= ENOUGH and loss > self.fast + SPIKE * sqrt(self.variance)

    @property
    def rises(self) -> bool:
        """Whether the last losses are above those before them by more than chance."""
        # Independent losses: the variance of a moving average of weight a is a / (2 - a) of one loss's.
        error = sqrt(self.variance * (FAST / (2 - FAST) + SLOW / (2 - SLOW)))
        return self.count >= ENOUGH and self.fast > self.slow + RISE * error

    def add(self, loss: float) -> None:
        """Take a loss into the averages; one that is a spike as well, since it may be there to stay."""
        if self.count > 0:
            half_square = (loss - self.last) ** 2 / 2
            self.variance += max(SLOW, 1 / self.count) * (half_square - self.variance)
        self.count += 1
        self.slow += max(SLOW, 1 / self.count) * (loss - self.slow)
        self.fast += max(FAST, 1 / self.count) * (loss - self.fast)
        self.last = loss

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved."""
        self.count, self.last, self.variance = state["count"], state["last"], state["variance"]
        self.slow, self.fast = state["slow"], state["fast"]
