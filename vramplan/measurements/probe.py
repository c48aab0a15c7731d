"""The Python API of what runs on a card: probes, the largest batch, plans that are proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs import nvml
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_card
from vramplan.measurements import subprocess_runner, verify
from vramplan.measurements.subprocess_runner import TIMEOUT_SECONDS, History
from vramplan.measurements.verify import MOST_RUNS, LargestBatch, ProbeRun, VerifiedPlan
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Measured, Request
from vramplan.memory.overheads import outside_bytes
from vramplan.planner.estimate import estimate
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.suggest import Search, suggest
from vramplan.progress import Progress, silent
from vramplan.units import format_bytes

Device = Literal["cuda", "cpu"]
Kept = Callable[[Measured, History], object]
"""Called with each run as it ends: to put it into a ledger."""


def _not_kept(measured: Measured, history: History) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """What runs are made on, and how."""

    card: Gpu
    """The card in this box, or the one it stands in for."""
    device: Device = "cuda"
    capped: bool = False
    """Whether torch's allocator is held to the card's size."""
    rates: Gpu | None = None
    """The card whose arithmetic is used: the one in this box."""
    steps: int = 3
    history: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS
    trust_remote_code: bool = False
    progress: Progress = silent
    keep: Kept = _not_kept

    def measure(self, spec: ModelSpec, job: Job) -> Measured:
        """Run a job.

        Raises:
            VramplanError: for whatever cannot run.
        """
        check_card(job, self.card)
        if self.device == "cpu":
            self._check_host(spec, job)
        if job.method not in ("full", "lora", "dora"):
            raise UnsupportedError(f"--method {job.method} is not probed yet; probed: full, lora, dora")
        if job.quantize != "none":
            raise UnsupportedError(f"--quantize {job.quantize} is not probed yet")
        if job.lengths is not None:
            raise UnsupportedError("--lengths is not probed yet")
        if job.strategy == "device_map":
            raise UnsupportedError("--strategy device_map is not probed yet")
        if job.strategy != "ddp" and self.device == "cpu":
            raise UnsupportedError(
                f"--strategy {job.strategy} --device cpu: the host's watch does not see into sharded tensors"
            )
        request = Request(
            spec=spec,
            job=job,
            card=self.card,
            device=self.device,
            steps=self.steps,
            cap_bytes=limit(self.card, job) if self.capped else None,
            history=self.history,
            trust_remote_code=self.trust_remote_code,
        )
        what = f"micro-batch {job.micro_batch_size}"
        measured, history = subprocess_runner.run(
            request, self.timeout_seconds, lambda w, s: self.progress(f"{what}: {w}", s)
        )
        measured = measured.model_copy(update={"model_flops_utilization": self._utilization(spec, measured)})
        self.keep(measured, history)
        return measured

    def _check_host(self, spec: ModelSpec, job: Job) -> None:
        """Refuse what the host cannot run.

        Raises:
            UnsupportedError: for FlashAttention.
            ConfigError: for more memory than is free.
        """
        if job.attention == "flash":
            raise UnsupportedError("--attention flash --device cpu: FlashAttention runs on CUDA cards alone")
        try:
            found, free = self.predict(spec, job), free_memory()
        except VramplanError:  # the run itself will say what is wrong
            return
        if found is not None and free is not None and found.peak_tensor_bytes > free:
            raise ConfigError(
                f"--device cpu: micro-batch {job.micro_batch_size} needs {format_bytes(found.peak_tensor_bytes)} of the"
                f" host's memory, {format_bytes(free)} are free"
            )

    def predict(self, spec: ModelSpec, job: Job) -> Estimate | None:
        """The estimate of the same; None where nothing models it."""
        try:
            return estimate(
                spec, self.card, progress=self.progress, trust_remote_code=self.trust_remote_code, **job.settings
            )
        except UnsupportedError:
            return None

    def _utilization(self, spec: ModelSpec, measured: Measured) -> float | None:
        """Arithmetic of a step without recomputation, over its time and the card's dense rate."""
        time, job = measured.step_time, measured.job
        if self.rates is None or not time:
            return None
        once = self.predict(spec, job.model_copy(update={"checkpointing": "none"}))
        rate = self.rates.flops_per_second.get(job.autocast if job.autocast != "none" else job.dtype)
        if once is None or not rate:
            return None
        return round(once.flops_per_micro_step * job.gradient_accumulation_steps / time / rate, 4)


def free_memory() -> int | None:
    """Bytes of the host's memory that are free, where the system says so."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def limit(card: Gpu, job: Job) -> int:
    """What torch's allocator may take of a card: all that a process gets, less what lies outside of it."""
    return card.usable_bytes - outside_bytes(job, card)


def bench(gpu: str | Gpu | None = None, *, device: str = "cuda", **settings: Any) -> ProbeDevice:
    """The card in this box, or that card standing in for `gpu`.

    On the host (`device` cpu) tensors are watched and run through the simulated allocator of `gpu`.

    Raises:
        ConfigError: where there is no card, or one smaller than what it is to stand in for.
    """
    if device not in ("cuda", "cpu"):
        raise ConfigError(f"--device {device}: expected cuda or cpu")
    wanted = None if gpu is None or (isinstance(gpu, str) and gpu.lower() == "auto") else gpu
    wanted = find_gpu(wanted) if isinstance(wanted, str) else wanted
    if device == "cpu":
        if wanted is None:
            raise ConfigError(
                "--device cpu needs the name of the card whose memory and kernels count: --as-card, for suggest --gpu"
            )
        return ProbeDevice(wanted, "cpu", capped=True, **settings)
    try:
        local = nvml.local_gpu()
    except VramplanError as error:
        why = str(error).removeprefix("--gpu auto: ").partition(";")[0]
        raise ConfigError(f"no card to probe: {why}; `vramplan estimate` needs none") from error
    if wanted is None or wanted.name == local.name:
        return ProbeDevice(local, rates=local, **settings)
    if wanted.usable_bytes > local.usable_bytes:
        raise ConfigError(
            f"--as-card {wanted.name}: needs {format_bytes(wanted.usable_bytes)}, the {local.title} here has"
            f" {format_bytes(local.usable_bytes)} free"
        )
    return ProbeDevice(wanted, capped=True, rates=local, **settings)


def probe(
    model: str | ModelSpec, gpu: str | Gpu | None = None, *, on: ProbeDevice | None = None, **job: Any
) -> ProbeRun:
    """Run a job on the card in this box, for real, beside its estimate; keyword arguments are fields of :class:`Job`.

    Raises:
        VramplanError: for whatever cannot run.
    """
    on = on or bench(gpu)
    spec = load_model(model)
    full = complete_job(spec, on.card, job)
    return ProbeRun(full, on.measure(spec, full), on.predict(spec, full))


def find_max(
    model: str | ModelSpec,
    gpu: str | Gpu | None = None,
    *,
    on: ProbeDevice | None = None,
    most_runs: int = MOST_RUNS,
    **job: Any,
) -> LargestBatch:
    """The largest micro-batch that really runs.

    Raises:
        VramplanError: for whatever cannot run.
    """
    on = on or bench(gpu)
    spec = load_model(model)
    full = complete_job(spec, on.card, job)
    start = full.micro_batch_size
    if "micro_batch_size" not in job:
        try:
            settings = {k: v for k, v in full.settings.items() if k != "gradient_accumulation_steps"}
            found = suggest(spec, on.card, full.num_gpus, advice=False, confidence=0.0, **settings)
            start = max(1, found.max_micro_batch_size)
        except UnsupportedError:
            start = 1
    return verify.find_max(full, start, lambda one: on.measure(spec, one), lambda one: on.predict(spec, one), most_runs)


def prove(
    model: str | ModelSpec, search: Search, *, on: ProbeDevice | None = None, most_runs: int = MOST_RUNS
) -> VerifiedPlan:
    """Run a search's recommended plan; step down where it does not fit, up where there is room.

    Raises:
        VramplanError: for whatever cannot run.
    """
    bench_ = on or bench()
    spec = load_model(model)
    return verify.verify(
        search, lambda one: bench_.measure(spec, one), lambda one: bench_.predict(spec, one), most_runs
    )
