"""Which GPU a message is of, by the memory that it tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from vramplan.errors import CannotRunError
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.gpu_by_size import MOST_GB, gpu_of_size
from vramplan.training_log import Amount, OutOfMemory
from vramplan.units import GiB, MiB

_MIB = re.compile(r"\b\d{4,6}\b(?=[\d, ]* MiB)")
"""Sizes in :attr:`vramplan.inputs.gpu.Gpu.cuda_total_source`: "observed: 24081, 24210 MiB in public logs"."""
_VENDORS = {"HIP": "AMD", "XPU": "Intel"}
"""First word of a message of PyTorch's allocator -> the vendor; CUDA for all others."""
T = TypeVar("T")


def likely_gpus(failure: OutOfMemory) -> list[Gpu]:
    """GPUs whose memory a message tells, the likeliest first, then a plain one of that size; empty if it tells none.

    Drivers differ: a GPU counts with each total that public logs show of it. Those with bf16 come first, and of them
    those whose memory was verified, which are the usual ones.
    """
    capacity = failure.figures.capacity
    if capacity is None or not GiB <= capacity.num_bytes <= MOST_GB * GiB:
        return []
    vendor = next((name for word, name in _VENDORS.items() if f"{word} out of memory" in failure.text), "NVIDIA")
    fitting = [
        _with_memory(gpu, capacity)
        for gpu in all_gpus()
        if gpu.vendor == vendor and any(capacity.allows(total) for total in _totals(gpu))
    ]
    fitting.sort(key=lambda gpu: (not gpu.supports("bf16"), gpu.confidence != "verified"))
    return [*fitting, _plain(capacity)] if vendor == "NVIDIA" else fitting


def with_likely_gpu(gpus: Sequence[Gpu], answer: Callable[[Gpu], T]) -> T:
    """The answer for the first of the GPUs that can run the configuration: the run reached its failure.

    Raises:
        VramplanError: as `answer` does, of the last GPU if none can.
    """
    for gpu in gpus[:-1]:
        try:
            return answer(gpu)
        except CannotRunError:
            continue
    return answer(gpus[-1])


def _totals(gpu: Gpu) -> list[int]:
    """Totals that CUDA tells of a GPU, in bytes."""
    seen = _MIB.findall(gpu.cuda_total_source) if gpu.cuda_total_source.startswith("observed") else []
    return [gpu.cuda_total_bytes, *(int(mib) * MiB for mib in seen)]


def _with_memory(gpu: Gpu, capacity: Amount) -> Gpu:
    """The GPU with the memory that the message tells, if that is not its listed one."""
    if capacity.allows(gpu.cuda_total_bytes):
        total, source = gpu.cuda_total_bytes, gpu.cuda_total_source
    else:
        total, source = capacity.num_bytes, "told by the log"
    note = f"{gpu.title}, by its {capacity.num_bytes / GiB:.2f} GiB; --gpu names another"
    return gpu.model_copy(update={"cuda_total_bytes": total, "cuda_total_source": source, "platform_note": note})


def _plain(capacity: Amount) -> Gpu:
    """A GPU of this memory that has bf16."""
    size = f"{capacity.num_bytes / GiB:.2f}"
    near = gpu_of_size(f"{size}GB")
    return near.model_copy(
        update={
            "title": f"{size} GiB GPU",
            "cuda_total_bytes": capacity.num_bytes,
            "driver_total_bytes": capacity.num_bytes,
            "cuda_total_source": "told by the log",
            "platform_note": f"no listed GPU that runs this has {size} GiB; kernels are those of the {near.rates_from};"
            " --gpu names the GPU",
        }
    )
