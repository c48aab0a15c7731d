"""Assigns modules to GPUs as ``device_map="auto"`` does: transformers 5.23's rules, from sizes alone.

Mirrors integrations/accelerate.py of transformers 5.23 (get_balanced_memory, infer_auto_device_map), which since 5.0
differ from accelerate's: the buffer on top of an even share is 1.25 times the largest layer or leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from vramplan.analytic.step_record import RecordedWeight
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.overheads import context_bytes
from vramplan.units import DTYPE_BYTES, GiB

IN_BITSANDBYTES = {"int8": 1.0, "nf4": 0.5, "nf4-double": 0.5}
"""Bytes of a quantized element as transformers counts them (quantizer_bnb_4bit.py: quantized_element_size)."""
WARMUP_RESERVE_BYTES = int(1.2 * GiB)
"""Bytes of a GPU's free memory that the warm-up does not request (caching_allocator_warmup)."""
QUANTIZED_SHARE = 0.9
"""Share of each GPU's budget that quantized models may take (adjust_max_memory)."""


class Module(NamedTuple):
    """A module; without children if it is never split (`_no_split_modules`, and leaf modules)."""

    name: str
    num_bytes: int
    """Of its parameters and buffers, without those tied to another module's."""
    children: tuple[Module, ...] = ()

    def holds(self, name: str) -> bool:
        """Whether `name` is this module or a module in it."""
        return f"{name}.".startswith(f"{self.name}.")


def loaded_bytes(weight: RecordedWeight, dtype: str) -> int:
    """A weight's bytes as transformers counts them before it loads it in `dtype`."""
    return int(weight.num_elements * IN_BITSANDBYTES.get(weight.quantize, DTYPE_BYTES[dtype]))


def warmup_bytes(weights: Sequence[RecordedWeight], job: Job, card: Gpu) -> int:
    """Bytes of the one piece that transformers requests before it loads onto a GPU (caching_allocator_warmup).

    Version 5.23 requests the model as it will be stored. Version 4.57 counts it unquantized, at most what the GPU has
    free, and requests half of that if it is quantized (get_accelerator_warm_up_factor).
    """
    if job.experts != "linear":
        return sum(loaded_bytes(one, job.dtype) for one in weights)
    size = sum(one.num_elements for one in weights) * DTYPE_BYTES[job.dtype]
    size = min(size, card.usable_bytes - context_bytes(card) - WARMUP_RESERVE_BYTES)
    return max(0, size) // (1 if job.quantize == "none" else 2)


def leaves(modules: Sequence[Module]) -> Iterator[Module]:
    """The modules that are never split, in order."""
    for one in modules:
        yield from leaves(one.children) if one.children else (one,)


def balanced(modules: Sequence[Module], largest_leaf: int, cards: int, free_bytes: int, quantized: bool) -> list[float]:
    """Bytes that each GPU may take: an even share and a buffer; the last has no limit (get_balanced_memory).

    `largest_leaf` is the largest module that holds parameters of its own, which may lie within a layer. The last GPU
    of a real run ends at its free memory, and the host takes the rest, which cannot train: here it does not fit.
    """
    share = sum(one.num_bytes for one in modules) // cards
    share += int(1.25 * max(largest_leaf, *(one.num_bytes for one in leaves(modules))))
    return [min(share, free_bytes) * (QUANTIZED_SHARE if quantized else 1)] * (cards - 1) + [inf]


def spread(modules: Sequence[Module], limits: Sequence[float], tied: tuple[str, str] | None = None) -> dict[str, int]:
    """The GPU of each module that is never split, by name (infer_auto_device_map).

    The first GPU keeps room for the largest layer that is still to be placed. `tied` are two modules that share their
    weight: the second goes where the first does.
    """
    waiting, found, used, card = list(modules), dict[str, int](), 0, 0
    largest = _largest(waiting)
    while waiting:
        one = waiting.pop(0)
        largest = [each for each in largest if not one.holds(each.name)] or _largest(waiting)
        room = limits[card] - (largest[0].num_bytes if largest and card == 0 else 0)
        partner = next((each for each in waiting if tied and one.holds(tied[0]) and each.holds(tied[1])), None)
        if used + one.num_bytes + (partner.num_bytes if partner else 0) <= room:
            for placed in (one, partner) if partner else (one,):
                used += placed.num_bytes
                found |= {leaf.name: card for leaf in leaves((placed,))}
            if partner:
                waiting.remove(partner)
        elif one.children:
            waiting[:0] = one.children
            largest = _largest(waiting)
        else:
            waiting.insert(0, one)
            card, used = card + 1, 0
    return found


def _largest(modules: Sequence[Module]) -> list[Module]:
    """The largest modules that are never split, all of the same size (get_max_layer_size)."""
    largest = max((one.num_bytes for one in leaves(modules)), default=0)
    return [one for one in leaves(modules) if one.num_bytes == largest] if largest else []
