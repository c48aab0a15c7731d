"""The GPU in this machine and the memory of its processes, as the NVIDIA driver reports them (NVML)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, MissingDependencyError, UnknownNameError, setting
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.cuda_driver import device_properties
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.unlisted_gpu import unlisted_gpu
from vramplan.units import MiB


def local_gpu(device: int = 0) -> Gpu:
    """The NVIDIA GPU with CUDA's number `device`, and the memory that other processes hold now.

    Raises:
        MissingDependencyError: if nvidia-ml-py is not installed.
        ConfigError: if there is no NVIDIA driver, no such GPU, or the catalogue has none of its compute capability.
    """
    try:
        with _driver() as pynvml:
            handle = _handle(pynvml, device)
            name = pynvml.nvmlDeviceGetName(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except ImportError as error:
        raise MissingDependencyError(f"{setting('gpu', 'auto')} needs NVML: pip install nvidia-ml-py") from error
    except NoAnswer as error:
        raise ConfigError(f"{setting('gpu', 'auto')}: the driver does not answer for GPU {device} ({error})") from error
    except NoDriver as error:
        raise ConfigError(
            f"{setting('gpu', 'auto')}: no NVIDIA driver answers here ({error}); name a GPU, see `vramplan gpus`"
        ) from error
    title = name if isinstance(name, str) else name.decode()
    return as_reported(title, int(memory.total), int(memory.used), device)


def as_reported(title: str, total_bytes: int, used_bytes: int, device: int = 0) -> Gpu:
    """The catalogue's GPU called `title`, with the size and use that the driver reports.

    If the catalogue lacks it, CUDA tells what decides its memory (:mod:`vramplan.inputs.unlisted_gpu`).

    Raises:
        ConfigError: if neither does.
    """
    try:
        listed = find_gpu(title)
    except UnknownNameError as error:
        reported = device_properties(device)
        unlisted = None if reported is None else unlisted_gpu(title, reported, total_bytes, used_bytes)
        if unlisted is not None:
            return unlisted
        missing = (
            "CUDA's driver does not tell its compute capability"
            if reported is None
            else f"no GPU there has its compute capability, {reported.compute_capability}"
        )
        raise ConfigError(
            f"{setting('gpu', 'auto')}: {title!r} is not in the catalogue, and {missing}; name a similar one, see"
            " `vramplan gpus`"
        ) from error
    gap = listed.driver_total_bytes - listed.cuda_total_bytes
    return listed.model_copy(
        update={
            "title": title,
            "driver_total_bytes": total_bytes,
            "cuda_total_bytes": total_bytes - gap,
            "cuda_total_source": f"reported by NVML, less {gap // MiB} MiB that CUDA does not see",
            "held_bytes": max(0, used_bytes - gap),
        }
    )


def visible_gpus() -> list[str]:
    """The UUID of each NVIDIA GPU that CUDA may use here, in the order of CUDA's numbers; empty without a driver.

    Raises:
        ConfigError: if CUDA_VISIBLE_DEVICES hides all of them.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        raise ConfigError("CUDA_VISIBLE_DEVICES hides every GPU")
    try:
        with _driver() as pynvml:
            count = len(_visible_names()) or pynvml.nvmlDeviceGetCount()
            names = [pynvml.nvmlDeviceGetUUID(_handle(pynvml, device)) for device in range(count)]
    except (ImportError, NoDriver):
        return []
    return [name if isinstance(name, str) else name.decode() for name in names]


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a GPU in use at one moment."""

    driver: str
    """The driver's version."""
    total_bytes: int
    """Memory of the GPU in bytes."""
    used_bytes: int
    """Bytes in use by all processes and the driver."""
    process_bytes: int | None
    """Bytes in use by one process; None if not reported (containers with their own process ids, WSL)."""


def usage(process: int, device: int = 0) -> Usage | None:
    """Memory in use on visible GPU number `device` and by a process on it; None if the driver does not answer."""
    try:
        with _driver() as pynvml:
            handle = _handle(pynvml, device)
            version = pynvml.nvmlSystemGetDriverVersion()
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            process_bytes = _process_bytes(pynvml, handle, process)
    except (ImportError, NoDriver):
        return None
    driver = version if isinstance(version, str) else version.decode()
    return Usage(driver, int(memory.total), int(memory.used), process_bytes)


def _process_bytes(pynvml: Any, handle: Any, process: int) -> int | None:
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # not reported under MIG or WSL
        return None
    sizes = [entry.usedGpuMemory for entry in running if entry.pid == process and entry.usedGpuMemory is not None]
    return int(sizes[0]) if sizes else None


class NoDriver(Exception):
    """No NVIDIA driver is installed."""


class NoAnswer(NoDriver):
    """The driver does not answer a query."""


@contextmanager
def _driver() -> Iterator[Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriver(str(error)) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NoAnswer(str(error)) from error
    finally:
        pynvml.nvmlShutdown()


def _visible_names() -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names; empty if it is not set."""
    return [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]


def _handle(pynvml: Any, device: int) -> Any:
    """The NVML handle of CUDA's device number `device`: CUDA_VISIBLE_DEVICES names GPUs by number or by UUID.

    NVML counts in the order of the PCI bus, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID or identical GPUs.
    """
    visible = _visible_names()
    name = visible[device] if device < len(visible) else str(device)
    return pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
