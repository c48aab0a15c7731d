"""The card in this box, as its driver reports it."""

from __future__ import annotations

from vramplan.card import Card
from vramplan.catalog import find_card
from vramplan.errors import ConfigError, MissingDependencyError, UnknownNameError
from vramplan.units import MiB


def local_card(index: int = 0) -> Card:
    """The NVIDIA card number `index`, with what other processes hold of it right now.

    Raises:
        MissingDependencyError: when nvidia-ml-py is not installed.
        ConfigError: when there is no NVIDIA driver, no such card, or none of its model in the catalogue.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MissingDependencyError("--gpu auto needs NVML: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ConfigError(
            f"--gpu auto: no NVIDIA driver answers here ({error}); name a card, see `vramplan gpus`"
        ) from error
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        raise ConfigError(f"--gpu auto: the driver does not answer for card {index} ({error})") from error
    finally:
        pynvml.nvmlShutdown()
    return as_reported(name if isinstance(name, str) else name.decode(), int(memory.total), int(memory.used))


def as_reported(title: str, total_bytes: int, used_bytes: int) -> Card:
    """The catalogue's card called `title`, with the size and use that the driver reports.

    Raises:
        ConfigError: when the catalogue has no such card.
    """
    try:
        known = find_card(title)
    except UnknownNameError as error:
        raise ConfigError(
            f"--gpu auto: {title!r} is not in the catalogue; name one like it, see `vramplan gpus`"
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
