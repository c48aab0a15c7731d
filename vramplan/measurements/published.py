"""Runs that others have measured and published, and what is known of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vramplan.errors import ConfigError
from vramplan.inputs.load import load_named_model
from vramplan.measurements.json_lines import load_runs
from vramplan.memory.estimate import Estimate
from vramplan.planner import estimate as planner_estimate

UNNAMED_GPU = "card not named"
"""How an unknown setting begins that says that the GPU is not published."""


class Published(BaseModel):
    """A run measured and published by others, as a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    """Unique name of the row."""
    group: str
    """Name of the publication; its rows are summarized together."""
    source: str
    """File or page of the publication, and its version."""
    grade: str
    """A: all settings are published; B: some are the framework's defaults."""
    model: str
    """A shipped name."""
    gpu: str
    """A GPU of the catalogue."""
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    metric: str = Field(pattern="^(allocated|reserved|process|device)$")
    """torch's max_memory_allocated or _reserved; the driver's figure for the process, or for the whole GPU."""
    outcome: Literal["ok", "oom"] = "ok"
    """Whether the run ran, or ran out of memory."""
    measured_bytes: int | None = Field(default=None, gt=0)
    """The published peak; none for a run that ran out of memory."""
    own_kernels: bool = False
    """Whether kernels of the framework's own, which are not modelled, replace the model's."""
    fixed_lengths: bool = True
    """Whether all samples are known to be equally long; if lengths vary, PyTorch caches far more."""
    unknown: list[str] = Field(default_factory=list)
    """Settings that are not published, or that vramplan cannot express."""

    @model_validator(mode="after")
    def _is_measured(self) -> Published:
        if (self.measured_bytes is None) == (self.outcome == "ok"):
            raise ValueError("a run that ran has measured_bytes, one that ran out of memory has not")
        return self

    @property
    def names_gpu(self) -> bool:
        """Whether the GPU is published."""
        return not any(name.startswith(UNNAMED_GPU) for name in self.unknown)

    def estimate(self, by: str = "analytic", confidence: float = 0.0) -> Estimate:
        """The estimate of the run.

        Raises:
            VramplanError: if it is not supported.
        """
        return planner_estimate.estimate(
            load_named_model(self.model), self.gpu, by=by, confidence=confidence, **self.job
        )


def load_published(path: Path) -> list[Published]:
    """Published runs from a file with one JSON object per line.

    Raises:
        ConfigError: for an unreadable file or an invalid line, naming the line.
    """
    published = load_runs(path, Published, "published run")
    if not published:
        raise ConfigError(f"{path}: no published run is in it")
    return published
