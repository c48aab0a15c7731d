"""Measure a matrix of jobs into a ledger within a given time, the most informative jobs first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, VramplanError, setting
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_card
from vramplan.measurements import ledger, probe
from vramplan.measurements.probe import ProbeDevice
from vramplan.measurements.verify import ProbeRun
from vramplan.memory.measurement import Measured, identity
from vramplan.planner.job_defaults import complete_job
from vramplan.units import GiB, counted

MIN_SECONDS = 25.0
"""With less time left no run is started: importing torch alone takes ten seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the matrix."""

    model: str
    job: dict[str, Any] = field(default_factory=dict)
    history: bool = False
    """Record every allocation and free, so that they can be replayed."""
    as_gpu: str | None = None
    """The GPU that the one in this machine stands in for."""
    find_max: bool = False
    """Search for the largest micro-batch that runs."""

    @property
    def name(self) -> str:
        """The case in one line, unique in the matrix."""
        settings = [
            f"{key.removesuffix('_size')}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in self.job.items()
        ]
        options = [f"as {self.as_gpu}"] * bool(self.as_gpu) + ["largest"] * self.find_max + ["history"] * self.history
        return " ".join([self.model, *settings, *options])

    def full_job(self, device: ProbeDevice) -> tuple[ModelSpec, Job]:
        """The model, and the job with its defaults filled in."""
        spec = find_model(self.model)
        if spec is None:
            raise UnknownNameError("model", self.model, ())
        return spec, complete_job(spec, device.gpu, self.job)


def _case(model: str, batch: int, length: int, **settings: Any) -> Case:
    """A row of the matrix; settings other than `history`, `as_gpu` and `find_max` are fields of the job."""
    options = {name: settings.pop(name) for name in ("history", "as_gpu", "find_max") if name in settings}
    return Case(model, {"micro_batch_size": batch, "sequence_length": length, **settings}, **options)


FULL: dict[str, Any] = {"method": "full", "autocast": "none"}
AMP: dict[str, Any] = {"method": "full", "dtype": "fp32", "autocast": "bf16"}
NONE: dict[str, Any] = {"checkpointing": "none"}
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")

CASES = (
    # the common job, then its parts: logits, casts of adapters, saved tensors, optimizer peaks
    _case("qwen2.5-7b", 1, 2048, history=True),
    _case("qwen2.5-7b", 1, 2048, **NONE),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, history=True),
    _case("qwen2.5-1.5b", 8, 1024, **AMP, **NONE),
    _case("qwen2.5-7b", 4, 2048, loop="plain"),
    _case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adamw_torch"),
    _case("qwen2.5-7b", 2, 2048, lora_rank=16, lora_dropout=0.05, **NONE),
    _case("mistralai/Mistral-7B-v0.1", 4, 4096, lora_rank=16, lora_targets=QKVO, lora_dropout=0.1, autocast="none"),
    # the most common question: the largest batch on a 24 GB card
    _case("qwen2.5-7b", 1, 2048, as_gpu="rtx4090", find_max=True),
    _case("llama-3.1-8b", 1, 8192, **FULL, history=True),
    # images: a frozen vision tower that is still differentiated, windows, DeepStack
    _case("Qwen/Qwen2.5-VL-3B-Instruct", 1, 2048, images=1, image_size=(1344, 896), history=True),
    _case("OpenGVLab/InternVL2_5-2B", 2, 2048, images=1, image_size=(1344, 896), **NONE),
    _case("Qwen/Qwen3-VL-2B-Instruct", 2, 2048, **FULL, images=1, image_size=(1024, 1024), vision="train"),
    _case("google/gemma-3-4b-it", 1, 1024, images=2, image_size=(896, 896), vision="lora", projector="lora"),
    # masks, scores, accumulation
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, batches="padded"),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, attention="eager"),
    _case("qwen2.5-0.5b", 8, 2048, **FULL, **NONE, gradient_accumulation_steps=4, history=True),
    # other architectures
    _case("google/gemma-2-2b", 2, 2048, lora_rank=16, attention="eager", **NONE),
    _case("Qwen/Qwen3-8B", 2, 2048, **NONE),
    _case("microsoft/Phi-3-mini-4k-instruct", 2, 2048, **FULL, **NONE),
    _case("EleutherAI/pythia-1.4b", 4, 2048, **FULL, **NONE),
    _case("openai-community/gpt2-large", 8, 1024, **AMP, **NONE),
    _case("llama-3.1-8b", 2, 2048, lora_rank=32, lora_targets=("q_proj", "v_proj"), **NONE),
    _case("llama-3.1-8b", 1, 16384),
    # the largest batch, from a poor start
    _case("llama-3.2-1b", 2, 1024, **FULL, as_gpu="rtx4090", find_max=True),
    _case("mistralai/Mistral-7B-v0.1", 2, 4096, **FULL),
    _case("qwen2.5-1.5b", 2, 4096, method="full", dtype="fp32", autocast="none"),
    _case("qwen2.5-7b", 4, 1024, lora_rank=16, autocast="none", **NONE),
    _case("llama-3.2-1b", 16, 512, **AMP, **NONE),
    _case("qwen2.5-0.5b", 32, 512, **FULL, **NONE, optimizer="sgd"),
    _case("llama-3.1-8b", 4, 2048, as_gpu="a100-40gb", find_max=True),
    _case("google/gemma-2-2b", 2, 2048, **FULL, attention="eager"),
    _case("Qwen/Qwen3-8B", 1, 4096, **FULL),
    _case("microsoft/Phi-3-mini-4k-instruct", 4, 2048, batches="padded"),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, expandable_segments=True, history=True),
    _case("qwen2.5-7b", 2, 2048, method="dora"),
    _case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adafactor"),
)
"""The matrix, the most informative runs first."""


def left(device: ProbeDevice, folder: Path, only: str = "", cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases whose name matches the regular expression `only` and whose run is not in the ledger yet.

    Cases that this GPU cannot run are left out: see :func:`impossible`.

    Raises:
        ConfigError: for an invalid pattern, or one that no case matches.
    """
    matching = _matching(only, cases)
    excluded = {case.name for case, _reason in _impossible(device, matching)}
    runs = ledger.load_all(folder) if folder.is_dir() else []
    return [case for case in matching if case.name not in excluded and not _is_done(case, device, runs)]


def impossible(device: ProbeDevice, only: str = "", cases: Sequence[Case] = CASES) -> list[str]:
    """A line of text for each matching case that this GPU cannot run, such as one that stands in for a larger GPU.

    Raises:
        ConfigError: for an invalid pattern, or one that no case matches.
    """
    return [
        f"{case.name}: skipped, {error.reason.partition(';')[0]}"
        for case, error in _impossible(device, _matching(only, cases))
    ]


def _impossible(device: ProbeDevice, cases: Sequence[Case]) -> Iterator[tuple[Case, VramplanError]]:
    for case in cases:
        try:
            case_device = _device_for(case, device)
            _spec, job = case.full_job(case_device)
            check_card(job, case_device.gpu)
        except VramplanError as error:
            yield case, error


def _matching(only: str, cases: Sequence[Case]) -> list[Case]:
    try:
        matching = [case for case in cases if re.search(only, case.name)]
    except re.error as error:
        raise ConfigError(f"{setting('only', repr(only))}: invalid regular expression ({error})") from error
    if not matching:
        example = f"; a run's name is {cases[0].name!r}" if cases else ""
        raise ConfigError(f"{setting('only', repr(only))}: no run has that in its name{example}")
    return matching


def _is_done(case: Case, device: ProbeDevice, runs: Sequence[Measured]) -> bool:
    device = _device_for(case, device)
    spec, job = case.full_job(device)
    cap = device.cap_bytes(job)
    if not case.find_max:
        name = identity(
            spec.name,
            spec.config,
            job,
            device.gpu.name,
            cap,
            {"cpu": "host", "emulated": "emulated"}.get(device.type, ""),
        )
        return name in {run.identity for run in runs}
    return frontiers(runs).get(frontier_key(spec.name, job, device.gpu.name, cap)) is not None


def frontier_key(model: str, job: Job, gpu: str, cap_bytes: int | None) -> str:
    """A key that is equal for runs that differ only in their micro-batch."""
    settings = job.model_dump(mode="json", exclude_defaults=True, exclude={"micro_batch_size"})
    return f"{model} {sorted(settings.items())} {gpu} {cap_bytes}"


def frontiers(runs: Sequence[Measured]) -> dict[str, int | None]:
    """The largest micro-batch that ran, by :func:`frontier_key`; None if the next larger one was not run."""
    ran: dict[str, set[int]] = {}
    failed: dict[str, set[int]] = {}
    for run in runs:
        key = frontier_key(run.model, run.job, run.card, run.environment.cap_bytes)
        (ran if run.outcome == "ok" else failed).setdefault(key, set()).add(run.job.micro_batch_size)
    return {key: max(sizes) if max(sizes) + 1 in failed.get(key, ()) else None for key, sizes in ran.items()}


def _device_for(case: Case, device: ProbeDevice) -> ProbeDevice:
    if case.as_gpu is None or case.as_gpu == device.gpu.name:
        return replace(device, history=case.history)
    stand_in = probe.probe_device(case.as_gpu, device=device.type)
    return replace(device, gpu=stand_in.gpu, capped=stand_in.capped, history=case.history)


def run(device: ProbeDevice, folder: Path, cases: Sequence[Case], seconds: float) -> Iterator[tuple[str, bool]]:
    """Measure case by case; each run is in the ledger before the next one starts.

    Yields a line of text for each case, and whether it was measured.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    ledger.make(folder)
    deadline = monotonic() + seconds
    for index, case in enumerate(cases):
        remaining = deadline - monotonic()
        if remaining < MIN_SECONDS:
            yield f"out of time, {counted(len(cases) - index, 'run')} left: run it again", index > 0
            return
        case_device = replace(_device_for(case, device), timeout=remaining, record=folder, record_errors=[])
        try:
            line = _measure(case, case_device)
            case_device.check_recorded()
            yield f"{case.name}: {line}", True
        except VramplanError as error:
            yield f"{case.name}: {str(error).removeprefix(f'{case.model}: ')}", False


def _measure(case: Case, device: ProbeDevice) -> str:
    spec, job = case.full_job(device)
    if case.find_max:
        settings = {name: value for name, value in job.settings.items() if name != "micro_batch_size"}
        largest = probe.find_max(spec, on=device, **settings)
        return f"largest micro-batch {largest.micro_batch_size}" + ("" if largest.exact else ", perhaps more")
    return summary_line(ProbeRun(job, device.measure(spec, job), device.predict(spec, job)))


def summary_line(run: ProbeRun) -> str:
    """A run's peaks, errors of the estimate and step time in one line."""
    if not run.fits:
        return f"out of memory {run.measured.failed_where}"
    parts = []
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        size = getattr(run.measured, name)
        part = f"{name.split('_')[1]} {size / GiB:.3f} GiB"
        if run.predicted is not None and size:
            part += f" (estimate {getattr(run.predicted, name) / size - 1:+.2%})"
        parts.append(part)
    if run.measured.context_bytes is not None:
        parts.append(f"context {run.measured.context_bytes >> 20} MiB")
    if run.measured.step_time is not None:
        parts.append(f"step {run.measured.step_time:.3f} s")
    return ", ".join(parts)
