"""Training speeds that others have published, each as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vramplan.errors import ConfigError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.links import with_links
from vramplan.inputs.load import load_named_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.measurements.json_lines import load_runs


class TimedRun(BaseModel):
    """A run whose speed others have measured and published, as a job."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str = Field(min_length=1)
    """Unique name of the row."""
    group: str
    """Name of the publication; its rows are summarized together."""
    source: str
    """File or page of the publication, and its version."""
    grade: str = Field(pattern="^[ABC]$")
    """A: all settings that matter are published; B: one or two are not; C: lengths, GPU or number of steps are not."""
    model: str | None
    """A shipped name; null if `config` describes the model."""
    config: dict[str, Any] | None = None
    """A Hub configuration with its model_type, for a model that is not shipped."""
    gpu: str
    """A GPU of the catalogue."""
    gpu_changes: dict[str, Any] = Field(default_factory=dict)
    """Fields of :class:`vramplan.Gpu` in which the GPU of the run differs from the catalogue."""
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    nodes: int = Field(gt=0)
    """Number of machines."""
    link: str | None = None
    """Links between GPUs and between machines, as published."""
    network_gbits: float | None = Field(default=None, gt=0)
    """Network of each machine in Gbit/s, all adapters together; null for one machine."""
    seconds_per_step: float = Field(gt=0, allow_inf_nan=False)
    """Time of one optimizer step, of the global batch on all GPUs."""
    tokens_per_step: int = Field(gt=0)
    """Tokens of one optimizer step on all GPUs."""
    fixed_lengths: bool = True
    """Whether all samples are known to be equally long."""
    nearest: list[str] = Field(default_factory=list)
    """Parts that run as the nearest that vramplan has, with little effect on the time."""
    unknown: list[str] = Field(default_factory=list)
    """Settings that matter and are not published, or that vramplan cannot express."""

    @field_validator("gpu_changes")
    @classmethod
    def _has_known_fields(cls, changes: dict[str, Any]) -> dict[str, Any]:
        for name in changes:
            if name not in Gpu.model_fields:
                raise ValueError(f"{name}: no such field of a GPU")
        return changes

    @model_validator(mode="after")
    def _has_one_model(self) -> TimedRun:
        if (self.model is None) == (self.config is None):
            raise ValueError("give model or config, and not both")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config has no model_type")
        return self

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return int(self.job.get("num_gpus", 1))

    @property
    def spec(self) -> ModelSpec:
        """The model.

        Raises:
            VramplanError: if its name is unknown.
        """
        if self.config is None:
            return load_named_model(str(self.model))
        config = {key: value for key, value in self.config.items() if key != "model_type"}
        model_type = self.config["model_type"]
        return ModelSpec(name=f"{self.group}'s {model_type}", model_type=model_type, config=config)

    @property
    def card(self) -> Gpu:
        """The GPU.

        Raises:
            VramplanError: if its name is unknown.
        """
        gpu = Gpu.model_validate(find_gpu(self.gpu).model_dump() | self.gpu_changes)
        return with_links(gpu, network_gbits=self.network_gbits)

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the job, the number of machines included."""
        return {**self.job, "num_nodes": self.nodes}


def load_times(path: Path) -> list[TimedRun]:
    """Published speeds from a file with one JSON object per line.

    Raises:
        ConfigError: for an unreadable file or an invalid line, naming the line.
    """
    runs = load_runs(path, TimedRun, "timed run")
    names: set[str] = set()
    for number, run in enumerate(runs, 1):
        if run.id in names:
            raise ConfigError(f"{path}: line {number} repeats the id {run.id}")
        names.add(run.id)
    return runs
