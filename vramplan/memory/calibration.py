"""Facts from measured runs: memory outside of PyTorch's allocator, and how far runs exceed their estimate.

``calibration.json`` is made from the ledger, from published runs and from published out-of-memory messages by
``python -m tests.learn``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.vllm import fixed_bytes
from vramplan.units import GiB, MiB

CONFIDENCE = 0.9
"""Confidence of a verdict by default."""
OUTSIDE_CONFIDENCE = 0.9
"""Confidence of the part outside of PyTorch at most: more would rest on single messages."""
COMPARED_BYTES = 24 * GiB
"""A GPU on which the margins of two confidences are compared."""
WIDENING = 1.5
"""Declared, not learned: how much wider the share of a kind of job is of which no run is known."""
_FILE = Path(__file__).with_name("calibration.json")

GROUPS = {"one": "one GPU", "zero": "ZeRO", "fsdp": "FSDP", "several": "several GPUs"}
"""Kinds of jobs that have a margin of their own, and their names in text. `several` are DDP and device maps."""


Published = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""What published runs say, by group and publication; see :func:`facts`."""


@cache
def facts() -> Mapping[str, Any]:
    """What measured runs say.

    `contexts`: {bytes, runs, driver} of each GPU of the ledger. `context`: what a context holds by the threads that a
    GPU runs at once, from published out-of-memory messages. `outside`: bytes outside of PyTorch beyond the estimate,
    message by message. `ledger`: by group, measured over estimated need, run by run. `published`: by group and
    publication, for each run [(measured - estimated outside) / estimated reserved, the share of the estimated reserved
    memory that a GiB is (0 if the measurement is of reserved memory)].
    """
    content: Mapping[str, Any] = json.loads(_FILE.read_bytes())
    return content


@dataclass(frozen=True, slots=True)
class Margin:
    """A safety margin for the error of an estimate."""

    outside_bytes: int
    """For memory outside of PyTorch."""
    share: float
    """Of the rest of the estimated need, for what the allocator caches."""
    source: str
    """The runs that it comes from, and how many of other runs it covers."""

    def of(self, num_bytes: int) -> float:
        """What it leaves free of so many bytes, in bytes."""
        return num_bytes - (num_bytes - self.outside_bytes) / (1 + self.share)


def quantile(ratios: Sequence[float], confidence: float) -> tuple[float, float]:
    """(the ratio that a further run stays below with `confidence`, the confidence that so many runs support).

    Split conformal prediction: the k-th smallest of n, k = ceil((n + 1) confidence) (arXiv 2107.07511, section 1);
    beyond n / (n + 1) there is no guarantee, and the largest ratio is returned.

    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.75)
    (1.04, 0.75)
    >>> quantile([0.98, 1.0, 1.02, 1.04], 0.99)
    (1.04, 0.8)
    """
    ordered = sorted(ratios)
    supported = len(ordered) / (len(ordered) + 1)
    k = ceil((len(ordered) + 1) * confidence - 1e-9)
    return ordered[min(k, len(ordered)) - 1], min(confidence, supported)


def grouped_quantile(values: Iterable[Sequence[float]], confidence: float) -> float:
    """The value that a share `confidence` of runs stays below, if each publication counts as much as each other.

    Runs of a publication are alike, so that its number of runs says little; robust to a publication with many.

    >>> grouped_quantile([[0.0] * 98 + [1.0], [0.5, 0.6]], 0.6)
    0.5
    """
    weighted = sorted((value, 1 / len(group)) for group in values for value in group)
    limit = confidence * sum(weight for _, weight in weighted) - 1e-9
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= limit:
            return value
    raise ValueError("no runs")


def group_of(job: Job) -> str:
    """The group of a job in :data:`GROUPS`."""
    if job.strategy == "fsdp":
        return "fsdp"
    if job.strategy.startswith("zero"):
        return "zero"
    return "one" if job.num_gpus == 1 else "several"


@cache
def margin(confidence: float, group: str = "one") -> Margin:
    """The margin that covers the error with `confidence`: from the ledger's runs if they suffice, else published ones.

    It has two parts: bytes for what lies outside of PyTorch, and a share for what its allocator caches. A group's share
    is no less than that of one GPU; a group without runs has :data:`WIDENING` times that of
    all groups together.

    Raises:
        ConfigError: for an invalid confidence.
    """
    if not 0 <= confidence < 1:
        raise ConfigError(
            f"{setting('confidence', f'{confidence:g}')}: expected a share from 0 (no margin) up to, not including, 1"
        )
    learned = _margin(confidence, group)
    if 0 < confidence < OUTSIDE_CONFIDENCE:  # what covers more serves, too, if it leaves less free
        return min(learned, margin(OUTSIDE_CONFIDENCE, group), key=lambda one: one.of(COMPARED_BYTES))
    return learned


def _margin(confidence: float, group: str) -> Margin:
    """The margin that runs show for just this confidence."""
    if confidence == 0:
        return Margin(0, 0.0, "no safety margin")
    ledger, published = facts()["ledger"].get(group, []), facts()["published"]
    if len(ledger) / (len(ledger) + 1) >= confidence:
        share = max(0.0, quantile(ledger, confidence)[0] - 1)
        text = f"{confidence:.0%} of {len(ledger)} measured runs ({GROUPS[group]}) stay within it"
        return Margin(0, share, f"safety margin {share:.1%}: {text}")
    outside_bytes = max(0, round(quantile(facts()["outside"], min(confidence, OUTSIDE_CONFIDENCE))[0]))
    share = _share(published, group, confidence, outside_bytes)
    figure = f"safety margin {share:.1%} and {outside_bytes / GiB:.2f} GiB outside PyTorch"
    if group not in published:
        source = f"{WIDENING:g} times that of all published runs, since none with {GROUPS[group]} is known"
        return Margin(outside_bytes, share, f"{figure}: {source}")
    count = sum(map(len, published[group].values()))
    covered = left_out_coverage(published, group, confidence, outside_bytes)
    source = f"learned from {count} published runs ({GROUPS[group]}), covers {covered:.0%} of those left out"
    if count / (count + 1) < confidence:
        source += f"; too few for {confidence:.0%}"
    return Margin(outside_bytes, share, f"{figure}: {source}")


def left_out_coverage(published: Published, group: str, confidence: float, outside_bytes: int) -> float:
    """Share of a group's runs that a margin covers that was learned without their publication.

    Each publication counts as much as each other.
    """
    shares = []
    for name, runs in published[group].items():
        others = {
            key: {other: values for other, values in sources.items() if other != name}
            for key, sources in published.items()
        }
        share = _share({key: sources for key, sources in others.items() if sources}, group, confidence, outside_bytes)
        shares.append(sum(excess <= share for excess in _excess(runs, outside_bytes)) / len(runs))
    return sum(shares) / len(shares)


def _share(published: Published, group: str, confidence: float, outside_bytes: int) -> float:
    """The share of a group: no less than that of one GPU; wider than of all groups together if it has no runs."""
    pooled: dict[str, list[Sequence[float]]] = {}
    for sources in published.values():
        for name, runs in sources.items():
            pooled.setdefault(name, []).extend(runs)
    shares = [
        grouped_quantile([_excess(runs, outside_bytes) for runs in sources.values()], confidence)
        for sources in (published.get(group, pooled), published.get("one", {}))
        if sources
    ]
    return max(0.0, *shares) * (1.0 if group in published else WIDENING)


def _excess(runs: Iterable[Sequence[float]], outside_bytes: int) -> list[float]:
    """By how much of its reserved memory each run exceeds its estimate, and `outside_bytes` more."""
    return [ratio - 1 - outside_bytes / GiB * per_gib for ratio, per_gib in runs]


def with_margin(gpu: Gpu, confidence: float) -> Gpu:
    """The GPU with the confidence that its plans are to have.

    Raises:
        ConfigError: for an invalid confidence.
    """
    margin(confidence)
    return gpu.model_copy(update={"margin_confidence": confidence})


def margin_of(job: Job, gpu: Gpu) -> Margin:
    """The safety margin of a job on a GPU."""
    return margin(gpu.margin_confidence, group_of(job))


def plannable_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that the job may take by its estimate: the usable bytes less the safety margin.

    The share of the margin is not taken of what vLLM holds, which is set and not estimated.
    """
    needed, fixed = margin_of(job, gpu), fixed_bytes(job, gpu)
    return max(0, fixed + int((gpu.usable_bytes - needed.outside_bytes - fixed) / (1 + needed.share)))


def margin_bytes(job: Job, gpu: Gpu) -> int:
    """The safety margin of a job on a GPU, in bytes."""
    return gpu.usable_bytes - plannable_bytes(job, gpu)


def context(gpu: Gpu) -> tuple[int, str] | None:
    """(bytes of CUDA's context, the source): measured on this GPU, else by its threads; None if these are not known.

    The driver reserves local memory for every thread that a GPU can run at once (CUDA C++ Programming Guide, "Local
    Memory"), so that a context grows with the number of multiprocessors; kernels are loaded beside it.
    """
    measured = facts()["contexts"].get(gpu.name)
    if measured is not None:
        return measured["bytes"], f"measured in {measured['runs']} runs, driver {measured['driver']}"
    if gpu.vendor != "NVIDIA" or gpu.multiprocessors is None:
        return None
    values = facts()["context"]
    threads = gpu.multiprocessors * gpu.threads_per_multiprocessor
    source = (
        f"not measured on this GPU: {values['bytes'] / MiB:.0f} MiB and {values['bytes_per_thread']:,.0f} B for each of"
        f" {threads:,} threads, by {values['messages']} published messages"
    )
    return int(values["bytes"] + values["bytes_per_thread"] * threads), source


def is_measured(gpu: Gpu) -> bool:
    """Whether the ledger has CUDA's context on this GPU."""
    return gpu.name in facts()["contexts"]
