"""A GPU that the catalogue lacks, from what its driver reports."""

from __future__ import annotations

import re

from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.cuda_driver import DeviceProperties
from vramplan.inputs.gpu import Gpu


def unlisted_gpu(title: str, reported: DeviceProperties, total_bytes: int, used_bytes: int) -> Gpu | None:
    """The GPU called `title`; None if the catalogue has none of its compute capability.

    Memory, compute capability and multiprocessors are its own, and so is what they decide: the kernels that run, the
    size of their workspaces. Rates of computation stand in from the nearest listed GPU of the same compute capability,
    per multiprocessor (:attr:`Gpu.rates_from`).

    Args:
        title: the driver's name of it.
        reported: CUDA's answers.
        total_bytes: total memory, as NVML reports it.
        used_bytes: memory in use, as NVML reports it.
    """
    alike = [gpu for gpu in all_gpus() if gpu.compute_capability == reported.compute_capability]
    if not alike:
        return None

    def distance(gpu: Gpu) -> tuple[bool, int]:
        other_class = ("GeForce" in title) != (gpu.form in ("desktop", "laptop"))
        return other_class, abs((gpu.multiprocessors or 0) - reported.multiprocessors)

    nearest = min(alike, key=distance)
    share = reported.multiprocessors / nearest.multiprocessors if nearest.multiprocessors else 1.0
    return nearest.model_copy(
        update={
            "name": re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-"),
            "title": title,
            "aliases": (),
            "multiprocessors": reported.multiprocessors,
            "driver_total_bytes": total_bytes,
            "cuda_total_bytes": reported.total_bytes,
            "cuda_total_source": "reported by CUDA",
            "held_bytes": max(0, used_bytes - (total_bytes - reported.total_bytes)),
            "flops_per_second": {dtype: rate * share for dtype, rate in nearest.flops_per_second.items()},
            "power_watts": None,
            "pcie_bytes_per_second": None,
            "nvlink_bytes_per_second": None,
            "nvlink_kind": "",
            "nvlink_gpus": 0,
            "sources": ("its driver",),
            "confidence": "inferred",
            "rates_from": nearest.title,
        }
    )
