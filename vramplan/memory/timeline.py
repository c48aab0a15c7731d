"""A training step as allocations and frees: what every source (analytic, traced, measured) produces."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, overload

from vramplan.dataclass import dataclass
from vramplan.memory import passes
from vramplan.units import round_up

if TYPE_CHECKING:
    from vramplan.memory.buffer import Buffer

CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "logits",
    "temporary",
    "communication",
    "vllm_weights",
    "vllm",
    "sglang_weights",
    "sglang",
    "context",
    "reserved_unused",
)
"""Uses of memory. `context` (CUDA, NCCL) lies outside of PyTorch; `vllm_weights` are vLLM's on the same GPU, `vllm` is
all else that it holds there, and likewise SGLang's; `reserved_unused` is cached by PyTorch's allocator."""

BLOCK_BYTES = 512
"""Allocations are rounded up to this (c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, torch 2.13)."""


NO_STREAM = -1
"""The stream of :data:`EMPTY_CACHE`."""


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
    buffer: Buffer | None = None
    """What its size follows from, if that is not linear in the micro-batch."""
    rounded_bytes: int = field(init=False)
    """Bytes as the caching allocator rounds them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounded_bytes", round_up(self.num_bytes, BLOCK_BYTES))


EMPTY_CACHE = Storage(0, "reserved_unused", "torch.cuda.empty_cache", stream=NO_STREAM)
"""No storage: where it is allocated, PyTorch's allocator gives back all segments that are free."""


@passes.bounded
def rounded_bytes(sizes: Iterable[int]) -> array[int]:
    """Sizes rounded up to whole blocks.

    Raises:
        TooManyBytesError: for a size that 64 bits do not hold.
    """
    return array("q", [(size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES for size in sizes])


class Kinds(Sequence[Storage]):
    """The distinct storages of a timeline: a storage that layers or steps repeat is listed once."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.storages = list(storages)

    def __len__(self) -> int:
        return len(self.storages)

    @overload
    def __getitem__(self, number: int) -> Storage: ...
    @overload
    def __getitem__(self, number: slice) -> list[Storage]: ...
    def __getitem__(self, number: int | slice) -> Storage | list[Storage]:
        return self.storages[number]

    def __iter__(self) -> Iterator[Storage]:
        return iter(self.storages)

    @cached_property
    def sizes(self) -> array[int]:
        """Rounded bytes of each."""
        return rounded_bytes(storage.num_bytes for storage in self)

    @cached_property
    def in_kernel(self) -> list[int]:
        """Numbers of those that kernels allocate."""
        return [number for number, storage in enumerate(self) if storage.in_kernel]

    @cached_property
    def streams(self) -> list[int] | None:
        """The stream of each; None if all are on stream 0."""
        streams = [storage.stream for storage in self]
        return streams if any(streams) else None


class JoinedKinds(Kinds):
    """The kinds of several timelines, one after another."""

    def __init__(self, parts: Sequence[Kinds]) -> None:
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, number: int) -> Storage:  # type: ignore[override]
        part = bisect_right(self.ends, number)
        return self.parts[part][number - (self.ends[part] - len(self.parts[part]))]

    def __iter__(self) -> Iterator[Storage]:
        return chain.from_iterable(self.parts)

    @cached_property
    def sizes(self) -> array[int]:
        sizes = array("q")
        for part in self.parts:
            sizes.extend(part.sizes)
        return sizes

    @cached_property
    def in_kernel(self) -> list[int]:
        firsts = (end - len(part) for end, part in zip(self.ends, self.parts, strict=True))
        return [first + number for first, part in zip(firsts, self.parts, strict=True) for number in part.in_kernel]

    @cached_property
    def streams(self) -> list[int] | None:
        if all(part.streams is None for part in self.parts):
            return None
        return [stream for part in self.parts for stream in part.streams or [0] * len(part)]


@dataclass(frozen=True, slots=True)
class Mark:
    """From `first_event` on, the step is in `phase`."""

    phase: str
    first_event: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Allocations and frees in order: event ``i`` allocates storage ``i``, event ``~i`` frees it."""

    kinds: Kinds
    kind_of: array[int]
    """The number of each storage's kind."""
    events: array[int]
    marks: Sequence[Mark]

    @classmethod
    def of(cls, storages: Iterable[Storage], events: Iterable[int], marks: Sequence[Mark]) -> Timeline:
        """The timeline of these storages, in the order of their numbers."""
        distinct: dict[int, tuple[int, Storage]] = {}
        kind_of = array("i", [distinct.setdefault(id(one), (len(distinct), one))[0] for one in storages])
        return cls(Kinds(storage for _, storage in distinct.values()), kind_of, array("i", events), marks)

    @property
    def storages(self) -> list[Storage]:
        """The storage of each number."""
        kinds = list(self.kinds)
        return [kinds[kind] for kind in self.kind_of]

    def storage(self, number: int) -> Storage:
        """The storage with this number."""
        return self.kinds[self.kind_of[number]]

    def sizes(self, with_kernels: bool = True) -> array[int]:
        """Rounded bytes of every kind; without `with_kernels`, workspaces of kernels count 0."""
        sizes = self.kinds.sizes
        if with_kernels:
            return sizes
        sizes = sizes[:]
        for number in self.kinds.in_kernel:
            sizes[number] = 0
        return sizes

    def live_bytes(self, with_kernels: bool = True) -> array[int]:
        """Bytes alive after each event."""
        return passes.live_bytes(self.events, self.kind_of, self.sizes(with_kernels))

    def peak_bytes(self, with_kernels: bool = True) -> int:
        """Highest bytes alive after any event."""
        return passes.peak_bytes(self.events, self.kind_of, self.sizes(with_kernels))

    @property
    def first_tensor(self) -> int:
        """Index of the event that allocates the first tensor, after allocations that only fill the cache."""
        return next(
            index
            for index, event in enumerate(self.events)
            if event >= 0 and self.storage(event).category != "reserved_unused"
        )

    def by_category(self, events: Sequence[int], with_kernels: bool = True) -> dict[str, Sequence[int]]:
        """Bytes of each category alive after each of these events, which must be in ascending order."""
        categories = [CATEGORIES.index(storage.category) for storage in self.kinds]
        sizes = self.sizes(with_kernels)
        totals = passes.live_by_group(self.events, self.kind_of, sizes, categories, len(CATEGORIES), events)
        return dict(zip(CATEGORIES, totals, strict=True))

    def phases(self) -> list[tuple[Mark, int]]:
        """Each mark with the index behind the last event of its phase."""
        ends = [*(mark.first_event for mark in self.marks[1:]), len(self.events)]
        return list(zip(self.marks, ends, strict=True))

    def phase_peaks(self, levels: array[int]) -> dict[str, int]:
        """The highest of `levels` (one per event) in each phase, over all its occurrences."""
        peaks: dict[str, int] = {}
        for mark, end in self.phases():
            first = max(0, mark.first_event - 1)  # the level at which the phase starts counts too
            if first < end:
                peaks[mark.phase] = max(peaks.get(mark.phase, 0), passes.highest(levels, first, end))
        return peaks

    def live_at(self, index: int) -> array[int]:
        """The kinds of the storages alive right after event `index`, in order of allocation."""
        return array("i", [self.kind_of[number] for number in passes.live_at(self.events, index)])
