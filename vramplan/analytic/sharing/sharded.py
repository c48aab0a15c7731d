"""What both of torch's FSDP have in common: parts of weights, gradients that are reduced to parts, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.record import Recorder
from vramplan.analytic.sharing.replicated import Replicated

if TYPE_CHECKING:
    from vramplan.analytic.step import Step
    from vramplan.analytic.tensors import Parameter
    from vramplan.job import Job

COMPUTE, GATHER, REDUCE, CAST = 0, 1, 2, 3
"""Streams: what is allocated on one that communicates does not serve the one that computes."""


def stored_dtype(parameter: Parameter, job: Job) -> str:
    """What trains is fp32 wherever there is mixed precision; the rest stays as it was loaded (accelerate 1.15)."""
    if parameter.trains and job.autocast != "none":
        return "fp32"
    return job.lora_dtype if parameter.is_adapter else job.dtype


class Sharded(Replicated):
    """One card's part of a run."""

    def __init__(self, step: Step, record: Recorder) -> None:
        super().__init__(step, record)
        self.gradients: list[int] = []
        """Reduced ones, of the own part."""
        self.inside = False
        """Whether the phase has come to the layers."""

    def prepare(self) -> None:
        """No buckets."""

    def drop_gradients(self, offset: int) -> None:
        """``zero_grad``."""
        self.record.free_all(self.gradients)
        self.gradients.clear()
