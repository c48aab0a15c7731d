"""What the NVIDIA driver says: the card in this box, and what processes hold of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vramplan.errors import ConfigError, MissingDependencyError, UnknownNameError, setting
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.units import MiB


def local_gpu(device: int = 0) -> Gpu:
    """The NVIDIA card that CUDA would call number `device`, with what other processes hold of it right now.

    Raises:
        MissingDependencyError: when nvidia-ml-py is not installed.
        ConfigError: when there is no NVIDIA driver, no such card, or none of its model in the catalogue.
    """
    try:
        with _driver() as pynvml:
            handle = _handle(pynvml, device)
            name = pynvml.nvmlDeviceGetName(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except ImportError as error:
        raise MissingDependencyError(f"{setting('gpu', 'auto')} needs NVML: pip install nvidia-ml-py") from error
    except NoAnswer as error:
        raise ConfigError(
            f"{setting('gpu', 'auto')}: the driver does not answer for card {device} ({error})"
        ) from error
    except NoDriver as error:
        raise ConfigError(
            f"{setting('gpu', 'auto')}: no NVIDIA driver answers here ({error}); name a card, see `vramplan gpus`"
        ) from error
    return as_reported(name if isinstance(name, str) else name.decode(), int(memory.total), int(memory.used))


def as_reported(title: str, total_bytes: int, used_bytes: int) -> Gpu:
    """The catalogue's card called `title`, with the size and use that the driver reports.

    Raises:
        ConfigError: when the catalogue has no such card.
    """
    try:
        known = find_gpu(title)
    except UnknownNameError as error:
        raise ConfigError(
            f"{setting('gpu', 'auto')}: {title!r} is not in the catalogue; name one like it, see `vramplan gpus`"
        ) from error
    gap = known.driver_total_bytes - known.cuda_total_bytes
    return known.model_copy(
        update={
            "title": title,
            "driver_total_bytes": total_bytes,
            "cuda_total_bytes": total_bytes - gap,
            "cuda_total_source": f"reported by NVML, less {gap // MiB} MiB that CUDA does not see",
            "held_bytes": max(0, used_bytes - gap),
        }
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a card holds at one moment, in bytes."""

    driver: str
    """The driver's version."""
    total_bytes: int
    """All of the card's memory."""
    used_bytes: int
    """By everyone, the driver itself included."""
    process_bytes: int | None
    """By the process asked for; None where the driver does not tell (containers that number their own, WSL)."""


def usage(process: int, device: int = 0) -> Usage | None:
    """What the driver says of visible card number `device` and of a process on it; None where it does not answer."""
    try:
        with _driver() as pynvml:
            handle = _handle(pynvml, device)
            version = pynvml.nvmlSystemGetDriverVersion()
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            mine = _process_bytes(pynvml, handle, process)
    except (ImportError, NoDriver):
        return None
    driver = version if isinstance(version, str) else version.decode()
    return Usage(driver, int(memory.total), int(memory.used), mine)


def _process_bytes(pynvml: Any, handle: Any, process: int) -> int | None:
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # not told under MIG or WSL
        return None
    sizes = [one.usedGpuMemory for one in running if one.pid == process and one.usedGpuMemory is not None]
    return int(sizes[0]) if sizes else None


class NoDriver(Exception):
    """There is no driver."""


class NoAnswer(NoDriver):
    """There is one, and it does not answer this."""


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


def _handle(pynvml: Any, device: int) -> Any:
    """The card that CUDA calls number `device`: CUDA_VISIBLE_DEVICES names cards by number or by UUID.

    NVML counts in the order of the PCI bus, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID or equal cards.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[device] if device < len(visible) else str(device)
    return pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
