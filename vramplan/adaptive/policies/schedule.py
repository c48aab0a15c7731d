"""A fixed schedule: a batch from each point of the run on, as in the warm-up of the batch in reports of large runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.adaptive.observation import Observation, Unit, check_unit
from vramplan.adaptive.policies.policy import Wish
from vramplan.errors import ConfigError


class Schedule:
    """Asks for the batch of the last point that was passed.

    Args:
        points: (samples or tokens, global batch), the earliest first.
        unit: samples or tokens: of the points.

    Raises:
        ConfigError: for points that are not in order, or none.
    """

    name = "schedule"
    is_measured = False
    may_shrink = True
    needs_norms = False
    needs: str | None = None

    def __init__(self, points: Sequence[tuple[int, int]], unit: Unit = "samples") -> None:
        check_unit(unit)
        positions = [position for position, _ in points]
        if not points or positions != sorted(set(positions)) or positions[0] < 0:
            raise ConfigError("the points of a schedule ascend from 0 on, such as (0, 32), (1000000, 64)")
        if min(batch for _, batch in points) < 1:
            raise ConfigError("the batches of a schedule are 1 or more")
        self.points, self.unit = tuple(points), unit

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        position = observation.position(self.unit)
        passed = [point for point in self.points if point[0] <= position]
        if not passed:
            return None
        since, asked = passed[-1]
        return Wish(asked, f"batch {asked} from {since:,} {self.unit} on", {"since": since, "scheduled_batch": asked})

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
