"""How data-parallel cards share a step: what each keeps of the weights, and what happens around the recorded events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.record import Recorder
from vramplan.analytic.sharing.fsdp1 import Fsdp1
from vramplan.analytic.sharing.fsdp2 import Fsdp2
from vramplan.analytic.sharing.replicated import Replicated

if TYPE_CHECKING:
    from vramplan.analytic.step import Step


def sharing_of(step: Step, record: Recorder) -> Replicated:
    """What the job's strategy makes of a played step."""
    kind = {"ddp": Replicated, "fsdp": Fsdp1 if step.job.fsdp.version == 1 else Fsdp2}[step.job.strategy]
    return kind(step, record)
