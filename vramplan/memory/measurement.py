"""A measured run: an entry of the ledger, and the result of a probe."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

_SETTINGS = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

UNDER_TORCHRUN = "env://"
"""Rendezvous of ranks started by torchrun, which sets it in each rank's environment."""

Outcome = Literal["ok", "oom"]
Device = Literal["cuda", "cpu", "emulated"]
"""A GPU, the host with its tensors tracked, or an emulated GPU."""


class Peaks(BaseModel):
    """Highest memory of one phase, in bytes."""

    model_config = _SETTINGS

    allocated_bytes: int = Field(ge=0)
    """torch.cuda.max_memory_allocated."""
    reserved_bytes: int = Field(ge=0)
    """torch.cuda.max_memory_reserved."""


class Environment(BaseModel):
    """The device and software of a run."""

    model_config = _SETTINGS

    device: str
    """The driver's name of the GPU; "cpu": real steps on the host, its tensors through the simulated allocator."""
    total_bytes: int = Field(ge=0)
    """torch.cuda.get_device_properties(0).total_memory; 0 on the host."""
    compute_capability: str | None = None
    """CUDA's, such as 9.0."""
    multiprocessors: int | None = Field(default=None, gt=0)
    """torch.cuda.get_device_properties(0).multi_processor_count."""
    driver: str | None = None
    """Version of the driver."""
    cuda: str | None = None
    """The CUDA version that torch was built with."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """torch, transformers, peft, accelerate, python, vramplan."""
    allocator_settings: str = ""
    """PYTORCH_ALLOC_CONF as it was set."""
    cap_bytes: int | None = None
    """Limit on torch's allocator, if a larger GPU stood in for a smaller one."""
    is_emulated: bool = False
    """Whether the GPU was emulated: PyTorch's CUDA build ran on libraries that stand in for CUDA's, without a GPU."""
    held_by_others_bytes: int = Field(default=0, ge=0)
    """Bytes of the GPU that other processes held when the run began."""
    ranks: int = Field(default=1, gt=0)
    """Number of processes; the figures are those of the fullest and the slowest."""


class Measured(BaseModel):
    """One run on real tensors. All sizes are bytes, per GPU."""

    model_config = _SETTINGS

    format: Literal[1] = 1
    """Version of this layout."""
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    """Day of the run, UTC."""
    model: str = Field(min_length=1)
    """Hub id or shipped name."""
    model_type: str
    """transformers' name of the architecture."""
    config: Mapping[str, Any]
    """The model's configuration, so that an entry can be estimated again without the Hub."""
    card: str
    """Short name of the GPU that the run is compared with: its own, or the one it stood in for."""
    job: Job
    """The job that was run."""
    environment: Environment
    """Device and software."""
    outcome: Outcome
    """ok, or oom: the GPU could not serve a request."""
    message: str = ""
    """torch's message when memory ran out."""
    failed_phase: str | None = None
    """The phase in which memory ran out: loaded (the model was built), forward, backward, optimizer, eval."""
    peak_allocated_bytes: int | None = Field(default=None, ge=0)
    """Of the training steps, loading included, evaluation left out."""
    peak_requested_bytes: int | None = Field(default=None, ge=0)
    """Requested bytes, without rounding and unsplit remainders."""
    peak_reserved_bytes: int | None = Field(default=None, ge=0)
    """Of the training steps, as above."""
    phases: Mapping[str, Peaks] = Field(default_factory=dict)
    """Peaks of each phase: loaded, forward, backward, optimizer, eval."""
    process_bytes: int | None = Field(default=None, ge=0)
    """Bytes of the process at the end of training, by the driver (NVML)."""
    context_bytes: int | None = Field(default=None, ge=0)
    """Of that, bytes outside of torch's allocator: CUDA context, kernels, libraries."""
    num_parameters: int = Field(default=0, ge=0)
    """Distinct parameters of the model, adapters left out."""
    num_trainable_parameters: int = Field(default=0, ge=0)
    """Trainable parameters."""
    step_seconds: tuple[float, ...] = ()
    """Time of each optimizer step, all its micro-batches counted; the first one warms up."""
    model_flops_utilization: float | None = Field(default=None, ge=0)
    """Share of the GPU's dense rate that the model's own arithmetic reached, without recomputation."""
    micro_steps_run: int = Field(default=1, gt=0)
    """Micro-batches that each step ran; beyond two, they repeat and their time is multiplied."""
    history: str | None = None
    """File next to this one with every allocation and free, if they were recorded."""

    @property
    def device_type(self) -> Device:
        """What it was measured on, as ``--device`` names it."""
        return "cpu" if self.environment.device == "cpu" else "emulated" if self.environment.is_emulated else "cuda"

    @property
    def is_of_gpu(self) -> bool:
        """Whether it was measured on a GPU: neither on the host nor on an emulated GPU."""
        return self.device_type == "cuda"

    @property
    def failed_where(self) -> str:
        """Where memory ran out, in words: "in backward", "while loading"; "" if it did not."""
        if self.failed_phase is None:
            return ""
        return "while loading" if self.failed_phase == "loaded" else f"in {self.failed_phase}"

    @property
    def step_time(self) -> float | None:
        """Seconds of one optimizer step once warm: the median of all but the first."""
        warm = sorted(self.step_seconds[1:] or self.step_seconds)
        return warm[len(warm) // 2] if warm else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of one rank's samples per second, padding included; None if samples differ in length."""
        time, job = self.step_time, self.job
        if not time or job.lengths is not None:
            return None
        return job.micro_batch_size * job.gradient_accumulation_steps * job.sequence_length / time

    @property
    def device_total_bytes(self) -> int | None:
        """Highest bytes on the GPU: reserved, plus memory outside of torch's allocator."""
        if self.peak_reserved_bytes is None or self.context_bytes is None:
            return None
        return self.peak_reserved_bytes + self.context_bytes

    @property
    def identity(self) -> str:
        """Name of the run and of its file: the same for the same model, job, GPU and limit."""
        cap_bytes = self.environment.cap_bytes
        return identity(self.model, self.config, self.job, self.card, cap_bytes, self.device_type)


class Request(BaseModel):
    """The input of a probe's process, as JSON."""

    model_config = _SETTINGS

    spec: ModelSpec
    """The model."""
    job: Job
    """The job to run; each rank takes its own micro-batches."""
    card: Gpu
    """The GPU that the run is compared with."""
    device: Device = "cuda"
    """What the job runs on."""
    steps: int = Field(default=3, gt=0)
    """Optimizer steps."""
    cap_bytes: int | None = Field(default=None, gt=0)
    """Limit on torch's allocator."""
    history: bool = False
    """Record every allocation and free."""
    trust_remote_code: bool = False
    """Whether to run code from the model's repository."""
    rank: int = Field(default=0, ge=0)
    """Rank of this process."""
    local_rank: int = Field(default=0, ge=0)
    """Number of its GPU on this host."""
    meeting_point: str | None = None
    """Rendezvous of the ranks: an init_method of torch.distributed."""

    @property
    def settings(self) -> str:
        """The allocator's settings, as PYTORCH_ALLOC_CONF spells them."""
        return "expandable_segments:True" if self.job.expandable_segments else ""


def identity(
    model: str, config: Mapping[str, Any], job: Job, card: str, cap_bytes: int | None, device: Device = "cuda"
) -> str:
    """A run's name for people and files: its main settings, and a digest of all.

    >>> identity("Qwen/Qwen2.5-0.5B", {}, Job(), "h200-sxm", None)
    'qwen2.5-0.5b.lora.b1x1.s2048.h200-sxm.913f47df'
    """
    settings = [dict(config), job.model_dump(mode="json", exclude_defaults=True), card, cap_bytes]
    kind = {"cuda": "", "emulated": "emulated", "cpu": "host"}[device]
    settings += [kind] if kind else []  # a run on the host, or on an emulated GPU, is no measurement of the GPU
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    batch = f"b{job.micro_batch_size}x{job.gradient_accumulation_steps}.s{job.sequence_length}"
    name = model.removesuffix("/config.json").rpartition("/")[2]
    short = [name, job.method, batch, f"{card}-{kind}" if kind else card]
    return ".".join([re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in short] + [digest])


def fullest(ranks: Sequence[Measured]) -> Measured:
    """The highest of each figure over all ranks; out of memory if any rank was."""
    failed = next((rank for rank in ranks if rank.outcome == "oom"), None)
    if failed is not None:
        return failed
    first = max(ranks, key=lambda rank: rank.peak_reserved_bytes or 0)
    phases = {
        name: Peaks(
            allocated_bytes=max(rank.phases[name].allocated_bytes for rank in ranks if name in rank.phases),
            reserved_bytes=max(rank.phases[name].reserved_bytes for rank in ranks if name in rank.phases),
        )
        for name in first.phases
    }
    slowest = tuple(max(times) for times in zip(*(rank.step_seconds for rank in ranks), strict=True))

    def highest(name: str) -> int | None:
        values = [value for rank in ranks if (value := getattr(rank, name)) is not None]
        return max(values) if values else None

    figures = ("peak_allocated_bytes", "peak_requested_bytes", "peak_reserved_bytes", "process_bytes", "context_bytes")
    return first.model_copy(
        update={"phases": phases, "step_seconds": slowest, **{name: highest(name) for name in figures}}
    )


def peaks_of(phases: Mapping[str, Peaks]) -> tuple[int, int]:
    """(allocated, reserved) peak of training in bytes: of every phase but the evaluation."""
    training = [peaks for name, peaks in phases.items() if name != "eval"]
    return max(peaks.allocated_bytes for peaks in training), max(peaks.reserved_bytes for peaks in training)
