"""Estimates of one job at several micro-batches, each made once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import plannable_bytes
from vramplan.memory.estimate import Estimate, PartialEstimate


class Estimator(Protocol):
    """What estimates a job; `several` says that the job will be estimated at other batches as well."""

    def __call__(self, spec: ModelSpec, job: Job, gpu: Gpu, /, several: bool = False) -> PartialEstimate: ...


class EstimateCache:
    """Estimates of one job by (micro-batch, accumulation), each made once, in full only if its tensors may fit."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, estimator: Estimator, several: bool = True) -> None:
        self.spec, self.job, self.gpu, self.estimator = spec, job, gpu, estimator
        self.several = several
        self._partial: dict[tuple[int, int], PartialEstimate] = {}
        self._complete: dict[tuple[int, int], Estimate] = {}

    def begin(self, micro: int, steps: int) -> PartialEstimate:
        """The estimate's lower bound, from which the rest can be completed."""
        pair = (micro, steps)
        if pair not in self._partial:
            job = with_batch(self.job, micro, steps)
            self._partial[pair] = self.estimator(self.spec, job, self.gpu, several=self.several)
        return self._partial[pair]

    def __call__(self, micro: int, steps: int) -> Estimate:
        """The complete estimate."""
        pair = (micro, steps)
        if pair not in self._complete:
            self._complete[pair] = self.begin(*pair).complete()
        return self._complete[pair]

    def too_large(self, micro: int, steps: int) -> bool:
        """Whether the tensors alone need more than the GPU has."""
        return self.begin(micro, steps).lower_bound_bytes > plannable_bytes(self.job, self.gpu)

    def fits(self, micro: int, steps: int) -> bool:
        """Whether this micro-batch fits."""
        return not self.too_large(micro, steps) and self(micro, steps).fits

    def changed(self, update: Mapping[str, Any], gpu: Gpu | None = None) -> EstimateCache:
        """The same for the job with these fields changed, on another GPU if one is given."""
        job = self.job.model_copy(update=dict(update))
        return EstimateCache(self.spec, job, gpu or self.gpu, self.estimator, several=False)
