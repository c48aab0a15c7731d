"""The memory of a model that is loaded to generate, on one GPU: weights, KV cache, prefill and decoding."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vramplan.dataclass import dataclass
from vramplan.memory import passes
from vramplan.memory.replay import Replay


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model needs on one GPU to be loaded and to generate with transformers. All sizes are bytes."""

    prompt_tokens: int
    new_tokens: int
    batch: int
    """Prompts that are generated for at a time."""
    weight_bytes: int
    """Weights, with adapters beside them, and buffers."""
    merged_weight_bytes: int | None
    """The same with adapters merged into the weights (``merge_and_unload``); None if there are none."""
    dense_weight_bytes: int | None
    """Weights of the model without quantization, into which QLoRA's adapters are usually merged; None without it."""
    loaded_bytes: int
    """What the process holds when the model is loaded: reserved by PyTorch, and CUDA's context."""
    cache_bytes: int
    """Keys and values of all tokens at the end."""
    cache_text: str
    """The tensors of the cache: number, shape and dtype."""
    prefill_bytes: int
    """Allocated peak of the forward over the prompt, with weights and cache."""
    decode_bytes: int
    """Allocated peak of the forwards over one token each, with weights and cache."""
    peak_reserved_bytes: int
    """As torch.cuda.max_memory_reserved reports it."""
    device_total_bytes: int
    """Reserved, plus CUDA's context: as nvidia-smi shows for the process."""
    capacity_bytes: int
    """Bytes of the GPU that this process may use."""
    margin_bytes: int
    """Of the capacity, the safety margin."""
    fits: bool
    """Whether it fits with the safety margin."""
    fits_without_margin: bool
    fits_loaded: bool
    """Whether the model fits without generating anything, with the safety margin."""
    assumptions: tuple[str, ...]

    @property
    def peak_allocated_bytes(self) -> int:
        """As torch.cuda.max_memory_allocated reports it, in bytes."""
        return max(self.prefill_bytes, self.decode_bytes)


class Template(NamedTuple):
    """The events of a forward, whose storages are numbered within it (slot 0) or within the forward before (slot 1)."""

    events: array[int]
    slots: array[int]
    source: array[int]
    """The simulated storage that each repeats."""
    zeros: array[int]
    """A zero for each."""
    cache: list[int]
    """The storages of keys and values, by layer."""
    held: list[int]
    """Other storages that outlive the forward."""


class GenerationRun:
    """Allocations and frees of a run of ``generate``."""

    def __init__(self) -> None:
        self.kind_of = array("i")
        """The number of each storage's kind."""
        self.kinds: dict[tuple[int, bool], int] = {}
        """Rounded bytes, and whether it is keys or values -> number of the kind."""
        self.events = array("i")
        self.ends: dict[str, int] = {}
        """Number of events up to the end of each phase."""
        self._first, self._before = 0, 0
        self._cache: list[int] = []
        self._held: list[int] = []
        self._templates: dict[tuple[int, int], Template] = {}

    @property
    def sizes(self) -> array[int]:
        """Rounded bytes of each kind."""
        return array("q", [size for size, _ in self.kinds])

    def add(self, sizes: Iterable[int], is_cache: Callable[[int], bool] = lambda number: False) -> array[int]:
        """The numbers of the kinds of storages of these sizes."""
        kinds = self.kinds
        return array("i", [kinds.setdefault((size, is_cache(number)), len(kinds)) for number, size in enumerate(sizes)])

    def forward(self, events: array[int], source: Sequence[int], kinds: Sequence[int], cached: frozenset[int]) -> None:
        """Record a forward.

        Args:
            events: number of each storage that is allocated, or ``~number`` of one that is freed.
            source: the simulated storage that each repeats.
            kinds: the kind of each simulated storage, from :meth:`add`.
            cached: those that are the keys or values of a layer. They replace those of the tokens before, which are
                freed when they are there (transformers 5.23, cache_utils.py: DynamicLayer.update).
        """
        key = (self._before, id(events))
        if key not in self._templates:
            self._templates[key] = _template(events, source, cached, self._cache)
        template, first = self._templates[key], len(self.kind_of)
        self.kind_of.extend(passes.relocated(template.zeros, template.source, kinds))
        self.events.extend(passes.relocated(template.events, template.slots, [first, self._first]))
        self._first, self._before, self._cache = first, id(events), template.cache
        self._held += [first + number for number in template.held]

    def drop(self) -> None:
        """Free the cache and whatever else is still there."""
        cache = [self._first + number for number in self._cache]
        self.events.extend([~number for number in (*cache, *self._held)])

    def cache_bytes(self) -> int:
        """Bytes of all keys and values now."""
        sizes = self.sizes
        return sum(sizes[self.kind_of[self._first + number]] for number in self._cache)

    def peaks(self, run: Replay) -> dict[str, int]:
        """Allocated peak of each phase."""
        peaks, first = {}, 0
        for phase, end in self.ends.items():
            peaks[phase] = max(run.allocated[first:end], default=0)
            first = end
        return peaks


def _template(events: Sequence[int], source: Sequence[int], cached: frozenset[int], before: list[int]) -> Template:
    """The template of a forward behind one with the keys and values `before`."""
    numbers = array("i", source)
    template = Template(array("i"), array("i"), numbers, array("i", bytes(4 * len(numbers))), [], [])
    for event in events:
        template.events.append(event)
        template.slots.append(0)
        if event >= 0 and source[event] in cached:
            if before:
                template.events.append(~before[len(template.cache)])
                template.slots.append(1)
            template.cache.append(event)
    freed = {*template.cache, *(~event for event in events if event < 0)}
    template.held.extend(event for event in events if event >= 0 and event not in freed)
    return template
