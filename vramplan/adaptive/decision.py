"""A change of the batch, as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vramplan.adaptive.rung import Rung
from vramplan.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What changes after an optimizer step, and why."""

    kind: str
    """grow, shrink, or out of memory, which keeps the global batch."""
    step: int
    """The last optimizer step at the batch before."""
    samples: int
    tokens: int
    before: Rung
    after: Rung
    learning_rate_factor: float
    """Factor of the schedule's rate from now on, at the end of re-warming."""
    reason: str
    values: Mapping[str, float]
    """The numbers behind the reason."""

    def as_dict(self) -> Any:
        """The decision as JSON has it."""
        return {
            "kind": self.kind,
            "step": self.step,
            "samples": self.samples,
            "tokens": self.tokens,
            "before": _batch(self.before),
            "after": _batch(self.after),
            "learning_rate_factor": self.learning_rate_factor,
            "reason": self.reason,
            "values": dict(self.values),
        }

    def json_line(self) -> str:
        """The decision on one line, without its end."""
        return json.dumps(self.as_dict(), allow_nan=False)


def _batch(rung: Rung) -> dict[str, int]:
    return {
        "global_batch_size": rung.global_batch_size,
        "micro_batch_size": rung.micro_batch_size,
        "gradient_accumulation_steps": rung.gradient_accumulation_steps,
        "num_gpus": rung.num_gpus,
    }
