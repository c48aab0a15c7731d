"""A GPU by its memory alone: ``24GB`` is any NVIDIA GPU that is sold with so much."""

from __future__ import annotations

import re

from vramplan.errors import ConfigError
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.gpu import MOST_MULTIPROCESSORS, Gpu
from vramplan.units import GiB, format_bytes

_SIZE = re.compile(r"(\d{1,4}(?:\.\d{1,2})?)\s*(?:g|gb|gib)", re.IGNORECASE)
_SAME_SIZE = 0.99
"""Share of the size from which the driver's total is that size: drivers list 31.84 GiB of 32."""
_LESS_BY_ECC = 0.93
"""Share down to which a GPU sold with that size may list less, because error correction takes a sixteenth."""
MOST_GB = 1024
"""More is refused as a likely mistake: the largest GPU has 288 GB."""


def is_size(name: str) -> bool:
    """Whether a name is a size: 24GB, 80 GB, 16g."""
    return _SIZE.fullmatch(name.strip()) is not None


def gpu_of_size(name: str) -> Gpu:
    """The GPU that a size stands for.

    It has the memory and the kernels of the listed GPU of that size with bf16 whose CUDA memory is least, or of the
    one nearest in size, scaled; and the most multiprocessors of those of that size, as more never need less memory.
    Its speed is not known (:attr:`Gpu.rates_from`).

    Raises:
        ConfigError: for less than 1 or more than 1,024 GB.
    """
    match = _SIZE.fullmatch(name.strip())
    size = float(match[1]) if match else 0.0
    if not 1 <= size <= MOST_GB:
        raise ConfigError(f"GPU {name}: expected 1 to {MOST_GB:,} GB, or a name; `vramplan gpus` lists all")
    listed = [gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA" and gpu.capability >= (8, 0)]
    total_bytes = round(size * GiB)
    same = [gpu for gpu in listed if total_bytes * _SAME_SIZE <= gpu.driver_total_bytes <= total_bytes]
    like = min(same, key=lambda gpu: gpu.cuda_total_bytes, default=None) or min(
        listed, key=lambda gpu: abs(gpu.driver_total_bytes - total_bytes)
    )
    share = 1.0 if same else total_bytes / like.driver_total_bytes
    return like.model_copy(
        update={
            "name": f"{size:g}gb",
            "title": f"{size:g} GB GPU",
            "aliases": (),
            "multiprocessors": max(gpu.multiprocessors or MOST_MULTIPROCESSORS for gpu in same or [like]),
            "driver_total_bytes": round(like.driver_total_bytes * share),
            "cuda_total_bytes": round(like.cuda_total_bytes * share),
            "cuda_total_source": f"derived from the {like.title}",
            "power_watts": None,
            "pcie_bytes_per_second": None,
            "nvlink_bytes_per_second": None,
            "nvlink_kind": "",
            "nvlink_gpus": 0,
            "confidence": "inferred",
            "platform_note": _listed_note(size, like, listed) if same else _scaled_note(like),
            "rates_from": like.title,
        }
    )


def _listed_note(size: float, like: Gpu, listed: list[Gpu]) -> str:
    """What is a guess about a size that GPUs have."""
    note = f"memory is that of the {like.title}, the least of GPUs with {size:g} GB"
    lesser = [gpu for gpu in listed if size * _LESS_BY_ECC <= gpu.driver_total_bytes / GiB < size * _SAME_SIZE]
    if not lesser:
        return note
    least = min(lesser, key=lambda gpu: gpu.cuda_total_bytes)
    return (
        f"{note}; some sold as {size:g} GB have less: the {least.title} leaves {format_bytes(least.cuda_total_bytes)}"
    )


def _scaled_note(like: Gpu) -> str:
    """What is a guess about a size that no GPU has."""
    return f"no listed GPU has this size; memory is scaled from the nearest in size, the {like.title}"


__all__ = ["MOST_GB", "gpu_of_size", "is_size"]
