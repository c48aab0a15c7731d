"""The loss rule that is in circulation, to compare with: it cannot tell noise from a rate that is too small.

Asked every two or three epochs: if the last five losses changed by less than 0.01 on average, the batch is halved;
otherwise it grows by a tenth, within limits. As published, it leaves the learning rate alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.adaptive.observation import Observation, Unit, check_unit
from vramplan.adaptive.policies.policy import Wish
from vramplan.errors import ConfigError, setting

LOSSES = 5
GROWTH = 1.1


class Plateau:
    """Asks for a half or 1.1 times its own batch, every so often.

    The published rule does not say whose loss is meant; here it is the mean of all since the last time.

    Args:
        interval: Samples or tokens from one time that it is asked to the next.
        smallest: The least batch.
        largest: The largest.
        unit: samples or tokens: of the interval.
        least_change: Mean absolute change of the last five losses below which the batch is halved.

    Raises:
        ConfigError: for an interval or limits that are impossible.
    """

    name = "plateau"
    is_measured = False
    may_shrink = True
    needs_norms = False
    needs: str | None = "loss"

    def __init__(
        self, interval: int, smallest: int, largest: int, unit: Unit = "samples", least_change: float = 0.01
    ) -> None:
        check_unit(unit)
        if interval < 1:
            raise ConfigError(f"{setting('interval', interval)}: expected 1 or more")
        if not 1 <= smallest <= largest:
            raise ConfigError(f"{setting('smallest', smallest)} and {setting('largest', largest)} are no limits")
        self.interval, self.unit, self.least_change = interval, unit, least_change
        self.smallest, self.largest = smallest, largest
        self._batch = 0.0
        self._asked_at = 0
        self._losses: list[float] = []
        self._sum, self._count = 0.0, 0

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        assert observation.loss is not None
        self._batch = self._batch or float(batch)
        self._sum, self._count = self._sum + observation.loss, self._count + 1
        position = observation.position(self.unit)
        if position - self._asked_at < self.interval:
            return None
        self._asked_at = position
        self._losses = [*self._losses, self._sum / self._count][-LOSSES:]
        self._sum, self._count = 0.0, 0
        pairs = zip(self._losses, self._losses[1:], strict=False)
        change = sum(abs(after - before) for before, after in pairs) / (LOSSES - 1)
        if len(self._losses) == LOSSES and change < self.least_change:
            self._batch = max(float(self.smallest), self._batch / 2)
            reason = f"the last {LOSSES} losses changed by {change:.4g} on average, less than {self.least_change:g}"
        else:
            self._batch = min(float(self.largest), self._batch * GROWTH)
            reason = f"no plateau in the last {len(self._losses)} losses"
        return Wish(self._batch, reason, {"wanted_batch": self._batch, "mean_change": change})

    def state_dict(self) -> dict[str, Any]:
        return {
            "batch": self._batch,
            "asked_at": self._asked_at,
            "losses": list(self._losses),
            "sum": self._sum,
            "count": self._count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batch, self._asked_at = state["batch"], state["asked_at"]
        self._losses, self._sum, self._count = list(state["losses"]), state["sum"], state["count"]
