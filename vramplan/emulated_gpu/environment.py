"""The environment variables under which a program runs on emulated GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vramplan.emulated_gpu.build import Libraries
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.gpu import Gpu

STARTUP = Path(__file__).parent / "startup"
"""A folder for PYTHONPATH: its sitecustomize.py computes the values that host code reads."""
MAX_GPUS = 64
"""MAX_GPUS of libraries/gpu.h."""
PREFIX = "VRAMPLAN_EMULATED_"


def check(gpu: Gpu, num_gpus: int = 1) -> None:
    """Refuse what cannot be emulated.

    Raises:
        UnsupportedError: for GPUs of other vendors, and those of which too little is known.
        ConfigError: for too many of them.
    """
    if gpu.vendor != "NVIDIA" or gpu.compute_capability is None:
        raise UnsupportedError(f"{setting('gpu', gpu.name)}: only NVIDIA GPUs are emulated")
    if gpu.multiprocessors is None:
        raise UnsupportedError(
            f"{setting('gpu', gpu.name)}: its number of multiprocessors is not known, so it is not emulated"
        )
    if num_gpus > MAX_GPUS:
        raise ConfigError(f"{setting('num_gpus', num_gpus)}: at most {MAX_GPUS} GPUs are emulated")


def variables(
    libraries: Libraries,
    gpu: Gpu,
    context_bytes: int,
    num_gpus: int = 1,
    state: Path | None = None,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Variables to add to those of a process.

    Args:
        libraries: The built libraries.
        gpu: The GPU to emulate.
        context_bytes: What CUDA's context and other libraries take on each GPU, outside PyTorch's allocator.
        num_gpus: Number of such GPUs.
        state: A file that processes share, to see each other's memory; None for one process.
        inherited: The variables to add to; None for those of this process.

    Raises:
        VramplanError: if the GPU cannot be emulated (:func:`check`).
    """
    check(gpu, num_gpus)
    before = os.environ if inherited is None else inherited
    named = gpu.title if gpu.title.startswith("NVIDIA") else f"NVIDIA {gpu.title}"
    settings = {
        "NAME": named,
        "CAPABILITY": gpu.compute_capability,
        "MULTIPROCESSORS": gpu.multiprocessors,
        "TOTAL_BYTES": gpu.usable_bytes,
        "DRIVER_BYTES": gpu.driver_total_bytes,
        "CONTEXT_BYTES": context_bytes,
        "COUNT": num_gpus,
        "STATE": state or "",
    }
    return {
        **{PREFIX + name: str(value) for name, value in settings.items()},
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus))),  # what was set is about GPUs that are there
        # Loaded before anything else, a library is used wherever its name is asked for, whatever path PyTorch's files
        # name first. No installed file is touched.
        "LD_PRELOAD": " ".join([*map(str, libraries.paths), *filter(None, [before.get("LD_PRELOAD")])]),
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *filter(None, [before.get("PYTHONPATH")])]),
        "TRITON_LIBCUDA_PATH": str(libraries.folder),
    }
