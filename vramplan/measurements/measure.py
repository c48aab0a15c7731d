"""Which jobs of the matrix are left to measure on a GPU, and the run of one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vramplan.errors import ConfigError, VramplanError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.validation import check_card
from vramplan.measurements import ledger, probe
from vramplan.measurements.matrix import CASES, Case
from vramplan.measurements.probe import ProbeDevice
from vramplan.measurements.verify import ProbeRun
from vramplan.memory.measurement import Measured
from vramplan.units import GiB, counted


def left(device: ProbeDevice, folder: Path, cases: Sequence[Case] = CASES, num_gpus: int | None = None) -> list[Case]:
    """The cases whose run is not in the ledger yet.

    Cases that this GPU, or `num_gpus` of them, cannot run are left out: see :func:`impossible`.

    Raises:
        ConfigError: for a broken file in the ledger, or runs of another type of device.
    """
    excluded = {case.name for case, _reason in _impossible(device, cases, num_gpus)}
    runs = ledger.load_all(folder) if folder.is_dir() else []
    ledger.check_device_type(folder, runs, device.type)
    return [case for case in cases if case.name not in excluded and not _is_done(case, device, runs)]


def impossible(device: ProbeDevice, cases: Sequence[Case] = CASES, num_gpus: int | None = None) -> list[str]:
    """A line of text for each case that cannot run here, such as one that stands in for a larger GPU."""
    return [f"{case.name}: skipped, {reason}" for case, reason in _impossible(device, cases, num_gpus)]


def matching(only: str, cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases whose name matches a regular expression.

    Raises:
        ConfigError: for an invalid pattern, or one that no case matches.
    """
    try:
        candidates = [case for case in cases if re.search(only, case.name)]
    except re.error as error:
        raise ConfigError(f"{setting('only', repr(only))}: invalid regular expression ({error})") from error
    if not candidates:
        example = f"; a run's name is {cases[0].name!r}" if cases else ""
        raise ConfigError(f"{setting('only', repr(only))}: no run has that in its name{example}")
    return candidates


def _impossible(device: ProbeDevice, cases: Sequence[Case], num_gpus: int | None) -> Iterator[tuple[Case, str]]:
    for case in cases:
        if num_gpus is not None and case.num_gpus > num_gpus:
            yield case, f"needs {case.num_gpus} GPUs, {counted(num_gpus, 'such GPU')} here"
            continue
        try:
            case_device = device_for(case, device)
            _spec, job = case.full_job(case_device.gpu)
            check_card(job, case_device.gpu)
        except VramplanError as error:
            yield case, error.reason.partition(";")[0]


def device_for(case: Case, device: ProbeDevice) -> ProbeDevice:
    """The device with the settings of a case.

    Raises:
        ConfigError: if the case stands in for a GPU that is larger.
    """
    if case.as_gpu is not None and case.as_gpu != device.gpu.name:
        device = device.standing_in_for(case.as_gpu)
    return replace(device, history=case.history)


def key(case: Case, device: ProbeDevice) -> str:
    """What the run of a case on a device is known by in the ledger; a search for the largest batch has one key."""
    device = device_for(case, device)
    spec, job = case.full_job(device.gpu)
    if case.find_max:
        return frontier_key(spec.name, job, device.gpu.name, device.cap_bytes(job))
    return device.identity(spec, job)


def _is_done(case: Case, device: ProbeDevice, runs: Sequence[Measured]) -> bool:
    if case.find_max:
        return frontiers(runs).get(key(case, device)) is not None
    return key(case, device) in {run.identity for run in runs}


def frontier_key(model: str, job: Job, gpu: str, cap_bytes: int | None) -> str:
    """A key that is equal for runs that differ only in their micro-batch."""
    settings = job.model_dump(mode="json", exclude_defaults=True, exclude={"micro_batch_size"})
    return f"{model} {sorted(settings.items())} {gpu} {cap_bytes}"


def _frontier_key_of(run: Measured) -> str:
    return frontier_key(run.model, run.job, run.card, run.environment.cap_bytes)


def frontiers(runs: Sequence[Measured]) -> dict[str, int | None]:
    """The largest micro-batch that ran, by :func:`frontier_key`; None if the next larger one was not run."""
    ran: dict[str, set[int]] = {}
    failed: dict[str, set[int]] = {}
    for run in runs:
        (ran if run.outcome == "ok" else failed).setdefault(_frontier_key_of(run), set()).add(run.job.micro_batch_size)
    return {key: max(sizes) if max(sizes) + 1 in failed.get(key, ()) else None for key, sizes in ran.items()}


def run(case: Case, device: ProbeDevice, folder: Path) -> str:
    """Measure one case into the ledger; a search for the largest batch begins where it was interrupted.

    Returns:
        The result in one line.

    Raises:
        VramplanError: if the job cannot run, its process fails, it takes too long, or it cannot be saved.
    """
    device = replace(device_for(case, device), record=folder, record_errors=[])
    spec, job = case.full_job(device.gpu)
    if case.find_max:
        settings = {name: value for name, value in job.settings.items() if name != "micro_batch_size"}
        known = {run.identity: run for run in ledger.load_all(folder) if _frontier_key_of(run) == key(case, device)}
        device = replace(device, recorded=known, max_runs=device.max_runs + len(known))
        largest = probe.find_max(spec, on=device, **settings)
        line = f"largest micro-batch {largest.micro_batch_size}" + ("" if largest.exact else ", perhaps more")
    else:
        line = summary_line(ProbeRun(job, device.measure(spec, job), device.predict(spec, job)))
    device.check_recorded()
    return line


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
