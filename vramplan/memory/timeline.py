"""A training step as allocations and frees: what every source (analytic, traced, measured) produces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from vramplan.units import round_up

CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "logits",
    "temporary",
    "communication",
    "context",
    "reserved_unused",
)
"""Uses of memory. `context` (CUDA, NCCL) lies outside of PyTorch; `reserved_unused` is cached by its allocator."""

BLOCK_BYTES = 512
"""Allocations are rounded up to this (c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation with its label. Layers share one object, so `label` names the layer as ``*``."""

    num_bytes: int
    """Bytes requested, before rounding."""
    category: str
    label: str
    formula: str = ""
    """Shape and dtype, such as ``1 x 2048 x 3584 bf16``."""
    in_kernel: bool = False
    """Whether a kernel or library allocates it, not a tensor of the framework."""
    stream: int = 0
    """CUDA stream of the allocation: 0 computes, others communicate."""
    rounded_bytes: int = field(init=False)
    """Bytes as the caching allocator rounds them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounded_bytes", round_up(self.num_bytes, BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class Mark:
    """From `first_event` on, the step is in `phase`."""

    phase: str
    first_event: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Allocations and frees in order: event ``i`` allocates ``storages[i]``, event ``~i`` frees it."""

    storages: Sequence[Storage]
    events: Sequence[int]
    marks: Sequence[Mark]

    def sizes(self, with_kernels: bool = True) -> list[int]:
        """Rounded bytes of every storage; without `with_kernels`, workspaces of kernels count 0."""
        if with_kernels:
            return [storage.rounded_bytes for storage in self.storages]
        return [0 if storage.in_kernel else storage.rounded_bytes for storage in self.storages]

    def streams(self) -> list[int] | None:
        """The stream of every storage; None if all are on stream 0."""
        streams = [storage.stream for storage in self.storages]
        return streams if any(streams) else None

    def live_bytes(self, with_kernels: bool = True) -> list[int]:
        """Bytes alive after each event."""
        sizes = self.sizes(with_kernels)
        return list(accumulate([sizes[event] if event >= 0 else -sizes[~event] for event in self.events]))

    @property
    def first_tensor(self) -> int:
        """Index of the event that allocates the first tensor, after allocations that only fill the cache."""
        return next(
            index
            for index, event in enumerate(self.events)
            if event >= 0 and self.storages[event].category != "reserved_unused"
        )

    def by_category(self, events: Sequence[int], with_kernels: bool = True) -> dict[str, list[int]]:
        """Bytes of each category alive after each of these events, which must be in ascending order."""
        sizes = self.sizes(with_kernels)
        now = dict.fromkeys(CATEGORIES, 0)
        totals: dict[str, list[int]] = {name: [] for name in now}
        remaining = iter([*events, -1])
        following = next(remaining)
        for index, event in enumerate(self.events):
            number = event if event >= 0 else ~event
            now[self.storages[number].category] += sizes[number] if event >= 0 else -sizes[number]
            if index == following:
                for name, size in now.items():
                    totals[name].append(size)
                following = next(remaining)
        return totals

    def phase_peaks(self, levels: Sequence[int]) -> dict[str, int]:
        """The highest of `levels` (one per event) in each phase, over all its occurrences."""
        peaks: dict[str, int] = {}
        ends = [mark.first_event for mark in self.marks[1:]] + [len(self.events)]
        for mark, end in zip(self.marks, ends, strict=True):
            first = max(0, mark.first_event - 1)  # the level at which the phase starts counts too
            if first < end:
                peaks[mark.phase] = max(peaks.get(mark.phase, 0), max(levels[first:end]))
        return peaks

    def live_at(self, index: int) -> list[Storage]:
        """The storages alive right after event `index`."""
        live: dict[int, None] = {}
        for event in self.events[: index + 1]:
            if event >= 0:
                live[event] = None
            else:
                del live[~event]
        return [self.storages[number] for number in live]
