"""A run of a trainer that scores completions in front of each optimizer step."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.trl_trace import TrlRun


class ScoringRun(TrlRun):
    """What runs while `scores` is set is the phase of scoring, whatever the trainer calls it."""

    scores = False

    def _needs_reference(self) -> bool:
        return self.job.loads_reference

    def _observe(self, trainer: Any, reference: nn.Module | None) -> None:
        enter = self.tracker.enter
        self.tracker.enter = lambda phase: enter("scoring" if self.scores else phase)  # type: ignore[method-assign]
        super()._observe(trainer, reference)
