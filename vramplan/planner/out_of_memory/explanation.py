"""An explanation of a log's last out-of-memory, with the configuration of the run or without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.gpu_by_size import gpu_of_size
from vramplan.inputs.load import load_gpu
from vramplan.memory.estimate import Estimate
from vramplan.planner.check import Verdict, check
from vramplan.planner.estimate import estimate
from vramplan.planner.out_of_memory.allocation import Allocation, find_allocation
from vramplan.planner.out_of_memory.causes import Cause, causes
from vramplan.progress import Progress, silent
from vramplan.result import Result
from vramplan.training_log import Amount, OutOfMemory, read_log
from vramplan.units import GiB


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """What ran out, why, and what to change."""

    failure: OutOfMemory
    """The message that is explained."""
    others: int
    """Further messages of the log, of other ranks and kinds."""
    causes: tuple[Cause, ...]
    """What the message itself shows, most certain first."""
    gpu: Gpu | None = None
    """The GPU, by its memory or by name; None if neither is known."""
    verdict: Verdict | None = None
    """On the run's configuration, if that is given."""
    allocation: Allocation | None = None
    """The tensor of the simulated run that was asked for; None without a configuration, or if none fits."""


def explain(
    log: str | Path,
    config: str | Path | Sequence[str] | None = None,
    gpu: str | Gpu | None = None,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Explanation:
    """Why the run behind a log ran out of memory.

    Args:
        log: the file that the run printed to.
        config: the configuration, script or command of the run, as :func:`vramplan.check` takes it.
        gpu: the GPU, if its memory in the message does not say which.
        progress: called with what is being done, and the share that is done.
        **settings: keyword arguments of :func:`vramplan.check`.

    Raises:
        ConfigError: if the log has no such message, or cannot be read.
        VramplanError: if the configuration cannot be read.
    """
    failures = read_log(Path(log))
    if not failures:
        raise ConfigError(f"{log}: no message of running out of memory is in it")
    failure = _first_rank(failures)
    known = load_gpu(gpu) if gpu is not None else _gpu_with(failure.figures.capacity)
    if config is None:
        return Explanation(failure, len(failures) - 1, causes(failure), known)
    if known is None:
        raise ConfigError(f"{log}: the message does not tell the GPU's memory; name the GPU")
    target = str(config) if isinstance(config, Path) else config
    verdict = check(target, known, progress=progress, **settings)

    def at(length: int) -> Estimate:
        progress(f"samples of {length:,} tokens", 0.9)
        return estimate(verdict.estimate.model, known, **{**verdict.estimate.job.settings, "sequence_length": length})

    found = find_allocation(failure, verdict.estimate, at) if failure.memory == "gpu" else None
    return Explanation(failure, len(failures) - 1, causes(failure), known, verdict, found)


def _first_rank(failures: Sequence[OutOfMemory]) -> OutOfMemory:
    """The message that says most: of a GPU before the host's, with figures, of the first rank, the last of these."""
    return min(
        reversed(failures),
        key=lambda failure: (failure.memory != "gpu", failure.figures.requested is None, failure.rank or 0),
    )


def _gpu_with(capacity: Amount | None) -> Gpu | None:
    """The listed GPU whose CUDA memory a message tells, or one of that size; None if it tells none."""
    if capacity is None:
        return None
    fitting = [gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA" and capacity.allows(gpu.cuda_total_bytes)]
    if fitting:
        return fitting[0]
    near = gpu_of_size(f"{max(1.0, capacity.num_bytes / GiB):.2f}GB")
    return near.model_copy(update={"cuda_total_bytes": capacity.num_bytes, "driver_total_bytes": capacity.num_bytes})
