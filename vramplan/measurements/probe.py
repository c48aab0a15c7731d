"""The Python API of real runs: probe one job, find the largest micro-batch, prove a suggested plan.

>>> import vramplan
>>> device = vramplan.probe_device(device="cpu", gpu="rtx4090", record="runs", max_runs=4)  # doctest: +SKIP
>>> vramplan.find_max("Qwen/Qwen2.5-0.5B", on=device, sequence_length=64).micro_batch_size  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, ProbeError, UnsupportedError, VramplanError, setting
from vramplan.inputs import nvml
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_card
from vramplan.measurements import ledger, subprocess_runner, verify
from vramplan.measurements.probe_checks import check_host, check_method, check_packages
from vramplan.measurements.subprocess_runner import TIMEOUT_SECONDS, Cancellation
from vramplan.measurements.verify import MAX_RUNS, LargestBatch, ProbeRun, VerifiedPlan
from vramplan.memory.estimate import Estimate
from vramplan.memory.measurement import Device, Measured, Request, identity
from vramplan.memory.overheads import outside_bytes
from vramplan.planner.estimate import estimate
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.search_result import Search
from vramplan.planner.suggest import suggest
from vramplan.progress import Progress, silent
from vramplan.units import format_bytes

STEPS = 3
"""Optimizer steps of a run; the first warms up."""


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """Where and how jobs are run; made by :func:`probe_device`."""

    gpu: Gpu
    """The GPU that runs are compared with: the one in this machine, or the one it stands in for."""
    type: Device = "cuda"
    """cuda: real steps on the GPU; cpu: real steps on the host, their tensors through the simulated allocator;
    emulated: the steps of PyTorch's CUDA build without a GPU, whose kernels do not run."""
    capped: bool = False
    """Whether PyTorch's allocator is limited to the memory of `gpu`."""
    local_gpu: Gpu | None = None
    """The GPU in this machine, whose dense rate gives the model FLOPs utilization; None on the host."""
    steps: int = STEPS
    """Optimizer steps of each run."""
    history: bool = False
    """Record every allocation and free."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs in this machine that runs may use; empty for all that are visible."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that one run may take."""
    deadline: float = inf
    """time.monotonic() at which every run ends."""
    max_runs: int = MAX_RUNS
    """Runs that :func:`find_max` and :func:`prove` may take."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    record: Path | None = None
    """Folder of the ledger that each run is saved in; None saves nothing."""
    recorded: Mapping[str, Measured] = field(default_factory=dict)
    """Runs by their identity that are not run again."""
    record_errors: list[ConfigError] = field(default_factory=list, compare=False)
    """Why runs could not be saved. The answer comes first: see :meth:`check_recorded`."""
    progress: Progress = silent
    cancellation: Cancellation | None = field(default=None, compare=False)
    """Ends the runs from another thread."""

    def measure(self, spec: ModelSpec, job: Job) -> Measured:
        """Run a job and save the run in the ledger; a run that is `recorded` is returned as it is.

        Raises:
            VramplanError: if the job cannot run here.
        """
        check_card(job, self.gpu)
        check_method(spec, job, self.type)
        check_packages(job)
        if self.type == "cpu":
            check_host(job, lambda: self.predict(spec, job))
        if (known := self.recorded.get(self.identity(spec, job))) is not None:
            return known
        request = Request(
            spec=spec,
            job=job,
            card=self.gpu,
            device=self.type,
            steps=self.steps,
            cap_bytes=self.cap_bytes(job),
            history=self.history,
            trust_remote_code=self.trust_remote_code,
        )
        prefix = f"micro-batch {job.micro_batch_size}"
        timeout = min(self.timeout, round(self.deadline - monotonic(), 1))
        if timeout <= 0:
            raise ProbeError("out of time")
        measured, history = subprocess_runner.run(
            request,
            timeout,
            lambda what, share: self.progress(f"{prefix}: {what}", share),
            gpus=self.gpus,
            cancellation=self.cancellation,
        )
        measured = measured.model_copy(update={"model_flops_utilization": self._utilization(spec, measured)})
        if self.record is not None:
            try:
                ledger.save(self.record, measured, history)
            except ConfigError as error:
                self.record_errors.append(error)
        return measured

    def predict(self, spec: ModelSpec, job: Job) -> Estimate | None:
        """The estimate of the same run, without a safety margin; None if no estimator supports the job."""
        try:
            return estimate(
                spec,
                self.running_gpu,
                progress=self.progress,
                trust_remote_code=self.trust_remote_code,
                confidence=0.0,
                **job.settings,
            )
        except UnsupportedError:
            return None

    def standing_in_for(self, name: str) -> ProbeDevice:
        """The same device with PyTorch limited to the memory of a smaller GPU; an emulated GPU is of that model then.

        Raises:
            VramplanError: for an unknown GPU, one that is larger, or one that cannot be emulated.
        """
        target, local = find_gpu(name), self.local_gpu
        if local is not None and target.name == local.name:
            return replace(self, gpu=local, capped=False)
        _check_target(target, self.type, local)
        return replace(self, gpu=target, capped=self.type != "emulated")

    def identity(self, spec: ModelSpec, job: Job) -> str:
        """The name of a job's run in the ledger, see :attr:`vramplan.memory.measurement.Measured.identity`."""
        return identity(spec.name, spec.config, job, self.gpu.name, self.cap_bytes(job), self.type)

    @property
    def running_gpu(self) -> Gpu:
        """The memory of `gpu` with the kernels that run: those of the GPU in this machine, if it stands in."""
        local = self.local_gpu
        if local is None or not self.capped:
            return self.gpu
        kernels = {"compute_capability": local.compute_capability, "multiprocessors": local.multiprocessors}
        return self.gpu.model_copy(update=kernels)

    def cap_bytes(self, job: Job) -> int | None:
        """Bytes that PyTorch's allocator may reserve: usable memory less the CUDA context; None if not capped."""
        if not self.capped:
            return None
        return self.gpu.usable_bytes - outside_bytes(job, self.gpu)

    def check_recorded(self) -> None:
        """Call it once the answer has been shown.

        Raises:
            ConfigError: if a run could not be saved (a full disk, a folder without write permission).
        """
        if self.record_errors:
            raise self.record_errors[0]

    def _utilization(self, spec: ModelSpec, measured: Measured) -> float | None:
        """Model FLOPs utilization: FLOPs of a step without recomputation, over its time and the GPU's dense rate."""
        step_time, job = measured.step_time, measured.job
        if self.local_gpu is None or self.local_gpu.rates_from or job.lengths is not None or not step_time:
            return None
        predicted = self.predict(spec, job.model_copy(update={"checkpointing": "none"}))
        rate = self.local_gpu.flops_per_second.get(job.autocast if job.autocast != "none" else job.dtype)
        if predicted is None or not rate:
            return None
        return round(predicted.flops_per_micro_step * job.gradient_accumulation_steps / step_time / rate, 4)


def probe_device(
    gpu: str | Gpu | None = None,
    *,
    device: Device = "cuda",
    number: int = 0,
    steps: int = STEPS,
    history: bool = False,
    timeout: float = TIMEOUT_SECONDS,
    max_runs: int = MAX_RUNS,
    trust_remote_code: bool = False,
    record: str | Path | None = None,
    progress: Progress = silent,
) -> ProbeDevice:
    """The GPU in this machine, or that GPU standing in for a smaller `gpu`; with ``device="cpu"`` the host.

    On the host the tensors of real steps go through the simulated allocator of `gpu`. On an emulated GPU PyTorch's own
    allocator runs, without a GPU. Of several GPUs in this machine, the one with CUDA's `number` is described; see
    :attr:`ProbeDevice.gpus` for those that runs may use.

    Raises:
        ConfigError: for an invalid setting, no GPU, or one smaller than `gpu`.
    """
    check_device(device)
    if not 1 <= steps <= 1000:
        raise ConfigError(f"{setting('steps', steps)}: expected 1 to 1000")
    if not 0 < timeout < 1e6:
        raise ConfigError(f"{setting('timeout', f'{timeout:g}')}: expected seconds above 0")
    if max_runs < 1:
        raise ConfigError(f"{setting('max_runs', max_runs)}: expected 1 or more")
    if history and record is None:
        raise ConfigError(f"{setting('history')} needs {setting('record')}, the folder to save it in")
    if record is not None and steps < 2:
        raise ConfigError(
            f"{setting('record')} needs {setting('steps', 2)} or more: the first step begins without optimizer states"
        )
    if record is not None:
        ledger.check_writable(Path(record))
    target, local = _gpus(gpu, device, number)
    return ProbeDevice(
        target,
        device,
        capped=device == "cpu" or (local is not None and target.name != local.name),
        local_gpu=local,
        steps=steps,
        history=history,
        timeout=timeout,
        max_runs=max_runs,
        trust_remote_code=trust_remote_code,
        record=None if record is None else Path(record),
        progress=progress,
    )


def check_device(device: str) -> None:
    """Refuse what is no type of device.

    Raises:
        ConfigError: naming those that there are.
    """
    if device not in ("cuda", "cpu", "emulated"):
        raise ConfigError(f"{setting('device', device)}: expected cuda, cpu or emulated")


def _gpus(gpu: str | Gpu | None, device: str, number: int) -> tuple[Gpu, Gpu | None]:
    """The GPU to compare with, and the one in this machine (None on the host).

    Raises:
        ConfigError: for no GPU, or one smaller than `gpu`.
    """
    target: Gpu | None = None
    if isinstance(gpu, Gpu):
        target = gpu
    elif gpu is not None and gpu.lower() != "auto":
        target = find_gpu(gpu)
    if device != "cuda":
        if target is None:
            raise ConfigError(
                f"{setting('device', device)} needs {setting('gpu')}, the GPU whose memory and kernels count"
            )
        _check_target(target, device, None)
        return target, None
    try:
        local = nvml.local_gpu(number)
    except VramplanError as error:
        reason = error.reason.partition(";")[0]
        raise ConfigError(f"no GPU to probe: {reason}; `vramplan estimate` needs none") from error
    if target is None or target.name == local.name:
        return local, local
    _check_target(target, device, local)
    return target, local


def _check_target(target: Gpu, device: str, local: Gpu | None) -> None:
    """Refuse a GPU that the one in this machine cannot stand in for, or that cannot be emulated."""
    if device == "emulated":
        from vramplan.emulated_gpu import build, environment

        environment.check(target)
        build.installed()
    if local is not None and target.usable_bytes > local.usable_bytes:
        raise ConfigError(
            f"{setting('gpu', target.name)}: needs {format_bytes(target.usable_bytes)}, the {local.title} here has"
            f" {format_bytes(local.usable_bytes)} free"
        )


def probe(
    model: str | ModelSpec, gpu: str | Gpu | None = None, *, on: ProbeDevice | None = None, **job: Any
) -> ProbeRun:
    """Run a job for real and estimate it; keyword arguments are fields of :class:`vramplan.Job`.

    Raises:
        VramplanError: if the job cannot run here.
    """
    device = on or probe_device(gpu)
    spec = load_model(model)
    full_job = complete_job(spec, device.gpu, job)
    return ProbeRun(full_job, device.measure(spec, full_job), device.predict(spec, full_job))


def find_max(
    model: str | ModelSpec, gpu: str | Gpu | None = None, *, on: ProbeDevice | None = None, **job: Any
) -> LargestBatch:
    """The largest micro-batch that really runs, searched around `micro_batch_size` or else around the estimate's.

    Raises:
        VramplanError: if the job cannot run here.
    """
    if subprocess_runner.is_torchrun():
        raise ConfigError(
            f"{setting('find_max')} starts its runs itself, which torchrun does not allow; run it without torchrun"
        )
    device = on or probe_device(gpu)
    spec = load_model(model)
    full_job = complete_job(spec, device.gpu, job)
    start = full_job.micro_batch_size
    if "micro_batch_size" not in job:
        try:
            settings = {name: v for name, v in full_job.settings.items() if name != "gradient_accumulation_steps"}
            search = suggest(spec, device.gpu, full_job.num_gpus, advice=False, confidence=0.0, **settings)
            start = max(1, search.max_micro_batch_size)
        except UnsupportedError:
            start = 1
    return verify.find_max(
        full_job,
        start,
        lambda candidate: device.measure(spec, candidate),
        lambda candidate: device.predict(spec, candidate),
        device.max_runs,
    )


def prove(
    model: str | ModelSpec, search: Search | int, *, on: ProbeDevice | None = None, **options: Any
) -> VerifiedPlan:
    """Run a search's recommended plan; step down if it does not fit, up if there is room.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        search: The search, or a global batch to search for first, as `vramplan suggest --probe` does.
        on: Where to run; None for the GPU in this machine.
        **options: Of :func:`vramplan.suggest`, if a global batch is given.

    Raises:
        VramplanError: if the plan cannot run here.
    """
    device = on or probe_device()
    spec = load_model(model)
    if isinstance(search, int):
        options = {"progress": device.progress, "trust_remote_code": device.trust_remote_code, **options}
        search = suggest(spec, device.gpu, search, **options)
    return verify.verify(
        search,
        lambda candidate: device.measure(spec, candidate),
        lambda candidate: device.predict(spec, candidate),
        device.max_runs,
        within_margin=device.type == "emulated",
    )
