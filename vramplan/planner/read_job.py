"""The job that was read of a configuration, with all that only the model decides, and its estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.analytic.rollout.ppo_samples import fields_of_samples, samples_bytes
from vramplan.dataclass import dataclass
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate import estimate
from vramplan.planner.read_config import with_prompt
from vramplan.progress import Progress


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A configuration's job on a GPU."""

    config: ParsedConfig
    spec: ModelSpec
    gpu: Gpu
    job: Mapping[str, Any]
    """Its fields (:class:`vramplan.Job`)."""
    confidence: float
    progress: Progress

    def estimate(self, update: Mapping[str, Any]) -> Estimate:
        """The estimate of the job with these fields changed.

        Raises:
            VramplanError: for what cannot run, or is not modelled.
        """
        fields = with_prompt(self.config, {**self.job, **update})
        return estimate(self.spec, self.gpu, confidence=self.confidence, progress=self.progress, **fields)

    def evaluation_bytes(self, training: Estimate, update: Mapping[str, Any], size: int | None) -> int | None:
        """Bytes on the GPU in the forward of an evaluation of `size` samples, where checkpointing does not help.

        Of TRL's PPO: while it generates and scores `size` samples for the log. `training` is the estimate with the
        fields of `update` changed. None without an evaluation.
        """
        if size is None:
            return None
        outside = training.device_total_bytes - training.peak_reserved_bytes
        if training.job.value_model is not None:
            at_size = self.estimate({**update, **fields_of_samples(size)})
            return samples_bytes(self.spec, training, at_size) + outside
        at_size = training
        if size != update.get("micro_batch_size", self.job["micro_batch_size"]):
            at_size = self.estimate({**update, "micro_batch_size": size})
        return at_size.evaluation_bytes + outside


__all__ = ["ReadJob"]
