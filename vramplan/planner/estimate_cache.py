"""Estimates of one job at several micro-batches, each made once, and what is changed about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate, PartialEstimate

Estimator = Callable[[ModelSpec, Job, Gpu], PartialEstimate]


@dataclass(frozen=True, slots=True)
class Lever:
    """A change to a job (or its card) that may save memory."""

    change: str
    why: str
    cost: str
    update: Mapping[str, Any] = field(default_factory=dict)
    card: Gpu | None = None


class EstimateCache:
    """Estimates by micro-batch and accumulation, each made once; a whole one only where the tensors may fit."""

    def __init__(self, spec: ModelSpec, job: Job, card: Gpu, estimator: Estimator) -> None:
        self.spec, self.job, self.card, self.estimator = spec, job, card, estimator
        self.begun: dict[tuple[int, int], PartialEstimate] = {}
        self.known: dict[tuple[int, int], Estimate] = {}

    def begin(self, micro: int, steps: int) -> PartialEstimate:
        """The first half of an estimate."""
        key = (micro, steps)
        if key not in self.begun:
            job = self.job.model_copy(update={"micro_batch_size": micro, "gradient_accumulation_steps": steps})
            self.begun[key] = self.estimator(self.spec, job, self.card)
        return self.begun[key]

    def __call__(self, micro: int, steps: int) -> Estimate:
        """The whole estimate."""
        key = (micro, steps)
        if key not in self.known:
            self.known[key] = self.begin(*key).complete()
        return self.known[key]

    def too_large(self, micro: int, steps: int) -> bool:
        """Whether its tensors alone are more than the card has."""
        return self.begin(micro, steps).lower_bound_bytes > self.card.plannable_bytes

    def fits(self, micro: int, steps: int) -> bool:
        """Whether this micro-batch fits."""
        return not self.too_large(micro, steps) and self(micro, steps).fits

    def need(self, micro: int, steps: int) -> int:
        """Bytes that this micro-batch needs on the card; at least, where that already is too much."""
        if not self.fits(micro, steps):
            return self.begin(micro, steps).lower_bound_bytes
        return self(micro, steps).device_total_bytes

    def changed(self, lever: Lever) -> EstimateCache:
        """The same with a lever pulled."""
        job = self.job.model_copy(update=dict(lever.update))
        return EstimateCache(self.spec, job, lever.card or self.card, self.estimator)
