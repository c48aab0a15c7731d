"""A batch that stays: what a run is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.adaptive.observation import Observation
from vramplan.adaptive.policies.policy import Wish


class Constant:
    """Asks for nothing."""

    name = "constant"
    is_measured = False
    may_shrink = False
    needs_norms = False
    needs: str | None = None

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        """None."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""
