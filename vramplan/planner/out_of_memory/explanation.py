"""An explanation of a log's last out-of-memory, with the configuration of the run or without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.inputs.load import load_gpu, load_model
from vramplan.memory.estimate import Estimate
from vramplan.memory.host import HostMemory
from vramplan.planner import after_training
from vramplan.planner.check import check
from vramplan.planner.estimate import estimate
from vramplan.planner.out_of_memory.allocation import Allocation, can_search, find_allocation
from vramplan.planner.out_of_memory.cause import Cause
from vramplan.planner.out_of_memory.causes import OLDER_EXPANDABLE_SEGMENTS, causes
from vramplan.planner.out_of_memory.likely_gpu import likely_gpus, with_likely_gpu
from vramplan.planner.out_of_memory.spelling import in_words, words_in_log, words_of
from vramplan.planner.verdict import Verdict
from vramplan.progress import Progress, silent
from vramplan.result import Result
from vramplan.training_log import OutOfMemory, read_log


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
    host: HostMemory | None = None
    """What a node's host needs by estimate, if its memory ran out and the configuration is given."""

    @property
    def was_searched(self) -> bool:
        """Whether the simulated run was searched for the tensor."""
        return self.verdict is not None and self.failure.memory == "gpu" and can_search(self.failure)


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
    gpus = [load_gpu(gpu)] if gpu is not None else likely_gpus(failure)
    if config is None:
        known = next(iter(gpus), None)
        reasons = in_words(causes(failure), words_in_log(failure.framework))
        return Explanation(failure, len(failures) - 1, reasons, known)
    if not gpus:
        raise ConfigError(f"{log}: the message does not tell the GPU's memory; name the GPU with {setting('gpu')}")
    target = str(config) if isinstance(config, Path) else config
    verdict = with_likely_gpu(gpus, lambda card: check(target, card, progress=progress, **settings))
    training = verdict.estimate

    def at(length: int) -> Estimate | None:
        """None for a length that the job cannot have: an image alone is longer."""
        progress(f"samples of {length:,} tokens", 0.9)
        try:
            return estimate(training.model, verdict.card, **{**training.job.settings, "sequence_length": length})
        except (ConfigError, UnsupportedError):
            return None

    found = find_allocation(failure, training, at) if failure.memory == "gpu" else None
    is_set = (EXPANDABLE_SEGMENTS, OLDER_EXPANDABLE_SEGMENTS) if training.job.expandable_segments else ()
    reasons = in_words(causes(failure), words_of(verdict.reading, training.job), is_set)
    host = after_training.host(load_model(training.model), training) if failure.memory == "host" else None
    return Explanation(failure, len(failures) - 1, reasons, verdict.card, verdict, found, host)


def _first_rank(failures: Sequence[OutOfMemory]) -> OutOfMemory:
    """The message that says most: of a GPU before the host's, with figures, of the first rank, the last of these."""
    return min(
        reversed(failures),
        key=lambda failure: (failure.memory != "gpu", failure.figures.requested is None, failure.rank or 0),
    )
