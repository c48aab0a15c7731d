"""The memory of a model that is loaded to generate, on one GPU: weights, KV cache, prefill and decoding."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from vramplan.dataclass import dataclass
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


class GenerationRun:
    """Allocations and frees of a run of ``generate``; every storage has a size of its own."""

    def __init__(self) -> None:
        self.sizes = array("q")
        self.events = array("i")
        self.cache: list[int] = []
        """Numbers of the storages of keys and values, by layer."""
        self.cached: set[int] = set()
        """Numbers of all storages that were keys or values."""
        self.ends: dict[str, int] = {}
        """Number of events up to the end of each phase."""

    def allocate(self, num_bytes: int) -> int:
        """Allocate a storage; returns its number."""
        number = len(self.sizes)
        self.sizes.append(num_bytes)
        self.events.append(number)
        return number

    def forward(
        self,
        events: array[int],
        size_of: Callable[[int], int],
        is_cached: Callable[[int], bool],
    ) -> None:
        """Record a forward.

        Args:
            events: number of each storage that is allocated, or ``~number`` of one that is freed.
            size_of: gives the bytes of a storage.
            is_cached: whether a storage is the keys or values of a layer. It replaces those of the tokens before,
                which are freed when it is there (transformers 5.23, cache_utils.py: DynamicLayer.update).
        """
        numbers: dict[int, int] = {}
        before, cache = self.cache, list[int]()
        for event in events:
            if event < 0:
                self.events.append(~numbers[~event])
                continue
            numbers[event] = self.allocate(size_of(event))
            if is_cached(event):
                if before:
                    self.events.append(~before[len(cache)])
                cache.append(numbers[event])
        self.cache = cache
        self.cached.update(cache)

    def drop(self) -> None:
        """Free everything that is still there."""
        freed = {~event for event in self.events if event < 0}
        self.events.extend([~number for number in range(len(self.sizes)) if number not in freed])
        self.cache = []

    def cache_bytes(self) -> int:
        """Bytes of all keys and values now."""
        return sum(self.sizes[number] for number in self.cache)

    def peaks(self, run: Replay) -> dict[str, int]:
        """Allocated peak of each phase."""
        peaks, first = {}, 0
        for phase, end in self.ends.items():
            peaks[phase] = max(run.allocated[first:end], default=0)
            first = end
        return peaks
