"""What a policy is to the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vramplan.adaptive.observation import Observation
from vramplan.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """The global batch that a policy asks for."""

    batch: float
    """In samples."""
    reason: str
    values: Mapping[str, float]
    """The numbers behind it."""


class Policy(Protocol):
    """Asks for a global batch after each observation that can be used."""

    name: str
    is_measured: bool
    """Whether it measures, so that a wish has to last and leads one rung further; else it is followed at once."""
    may_shrink: bool
    """Whether its batch may become smaller."""
    needs_norms: bool
    """Whether it needs gradient norms of two batch sizes."""
    needs: str | None
    """What else it needs of an observation: loss or learning_rate."""

    def wish(self, observation: Observation, batch: int) -> Wish | None:
        """What it asks for at the present global batch; None for no opinion."""

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers, as JSON has it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved."""
