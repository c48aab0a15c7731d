"""Compare estimates with runs of PyTorch's CUDA build on emulated GPUs: real host code, no kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, VramplanError, setting
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_named_model
from vramplan.measurements.accuracy import Row, largest_estimated
from vramplan.measurements.json_lines import load_runs
from vramplan.planner import estimate as planner_estimate
from vramplan.progress import Progress, silent

KINDS = ("model", "method", "dtype", "compute capability", "GPUs")
"""What runs are grouped by."""


class EmulatedRun(BaseModel):
    """A run on an emulated GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = ""
    """What the run is called; "" for the model and the GPU."""
    model: str
    """A shipped name."""
    gpu: str
    """A GPU of the catalogue."""
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    outcome: Literal["ok", "oom"] | None = "ok"
    """Whether the run ran, or ran out of memory; None for a search for the largest micro-batch."""
    allocated_bytes: int | None = Field(default=None, gt=0)
    """torch.cuda.max_memory_allocated; none if the run ran out of memory."""
    reserved_bytes: int | None = Field(default=None, gt=0)
    """torch.cuda.max_memory_reserved."""
    retries: int = Field(default=0, ge=0)
    """How often the allocator gave its cache back for an allocation (num_alloc_retries)."""
    largest_micro_batch: int | None = Field(default=None, ge=0)
    """The largest micro-batch that runs there, where it was searched for."""
    torch: str
    """Version of PyTorch."""

    @property
    def title(self) -> str:
        """What it is called in lists."""
        return self.name or f"{self.model} on {self.gpu}"

    def largest_estimated(self) -> int:
        """The largest micro-batch that fits by the estimate, without a margin; 0 if none fits.

        Raises:
            VramplanError: if there is no estimate.
        """
        return largest_estimated(load_named_model(self.model), find_gpu(self.gpu), self.job, confidence=0.0)


@dataclass(frozen=True, slots=True)
class EmulatedRow:
    """A run beside its estimate."""

    run: EmulatedRun
    labels: dict[str, str]
    """The value of each of :data:`KINDS`."""
    rows: tuple[Row, ...]
    """Allocated and reserved peak; empty if it ran out of memory."""
    said: bool
    """Whether the estimate fits, without a safety margin."""
    ran: bool


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest micro-batch that runs on an emulated GPU, and the one that `suggest` finds without a margin."""

    run: EmulatedRun
    chosen: int

    @property
    def largest(self) -> int:
        """The one that runs."""
        assert self.run.largest_micro_batch is not None
        return self.run.largest_micro_batch


@dataclass(frozen=True, slots=True)
class Emulated:
    """Estimates compared with runs on emulated GPUs."""

    runs: tuple[EmulatedRow, ...]
    searches: tuple[Largest, ...]
    torch: tuple[str, ...]
    """Versions of PyTorch."""
    left_out: tuple[str, ...]
    """Runs that cannot be estimated, and why."""


def load_emulated(path: Path) -> list[EmulatedRun]:
    """Runs from a file with one JSON object per line.

    Raises:
        ConfigError: for an unreadable file or an invalid line, naming the line; for a folder of recorded runs.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: a folder of recorded runs; compare them with {setting('ledger', path)}")
    return load_runs(path, EmulatedRun, "run on an emulated GPU")


def compare_emulated(path: Path, progress: Progress = silent) -> Emulated:
    """Estimate every run of a file, see :func:`compare_runs`.

    Raises:
        ConfigError: for an unreadable file or an invalid line.
    """
    return compare_runs(load_emulated(path), progress)


def compare_runs(runs: Sequence[EmulatedRun], progress: Progress = silent) -> Emulated:
    """Estimate every run without a margin; those without an estimate are left out, with the reason."""
    rows, searches, left_out = [], [], []
    for number, run in enumerate(runs):
        progress(run.model, number / len(runs))
        try:
            if run.outcome is not None:
                rows.append(_compared(run))
            if run.largest_micro_batch is not None:
                searches.append(Largest(run, run.largest_estimated()))
        except VramplanError as error:
            left_out.append(f"{run.title}: {error}")
    return Emulated(tuple(rows), tuple(searches), tuple(dict.fromkeys(run.torch for run in runs)), tuple(left_out))


def by_kind(runs: Iterable[EmulatedRow], kind: str) -> dict[str, list[EmulatedRow]]:
    """The runs by their value of one of :data:`KINDS`, in order."""
    grouped: dict[str, list[EmulatedRow]] = {}
    for run in runs:
        grouped.setdefault(run.labels[kind], []).append(run)
    return dict(sorted(grouped.items()))


def _compared(run: EmulatedRun) -> EmulatedRow:
    spec, gpu = load_named_model(run.model), find_gpu(run.gpu)
    predicted = planner_estimate.estimate(spec, gpu, confidence=0.0, **run.job)
    pairs = (
        ("allocated", run.allocated_bytes, predicted.peak_allocated_bytes),
        ("reserved", run.reserved_bytes, predicted.peak_reserved_bytes),
    )
    rows = [
        Row(run.title, run.gpu, "analytic", metric, measured, size)
        for metric, measured, size in pairs
        if measured is not None
    ]
    labels = _labels(spec.model_type, predicted.job, gpu.capability)
    return EmulatedRow(run, labels, tuple(rows), predicted.fits, run.outcome == "ok")


def _labels(model_type: str, job: Job, capability: tuple[int, int]) -> dict[str, str]:
    quantized = "" if job.quantize == "none" else f", {job.quantize}"
    autocast = "" if job.autocast == "none" else f" under {job.autocast} autocast"
    strategy = "one" if job.num_gpus == 1 else f"{job.num_gpus}, {job.strategy}"
    capability_text = ".".join(map(str, capability))
    values = (model_type, f"{job.method}{quantized}", f"{job.dtype}{autocast}", capability_text, strategy)
    return dict(zip(KINDS, values, strict=True))


def worst(runs: Iterable[EmulatedRow], metric: str, count: int) -> list[tuple[EmulatedRow, float]]:
    """The runs with the largest errors of a metric."""
    errors = [(run, row.error) for run in runs for row in run.rows if row.metric == metric]
    return sorted(errors, key=lambda pair: -abs(pair[1]))[:count]
