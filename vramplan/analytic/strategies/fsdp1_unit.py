"""A unit of FSDP 1: weights that are one flat tensor, and what is made of it in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.strategies.fsdp import CAST, GATHER, REDUCE, gathered_dtype
from vramplan.analytic.strategies.fsdp1_loading import LoadedUnit
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div, round_up

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed

ALIGNMENT_BYTES = 16
"""Of each weight within the flat one, with ``use_orig_params`` (_flat_param.py: _get_aligned_numel)."""


class Unit:
    """One flat weight, of trainable or of frozen weights."""

    def __init__(
        self,
        name: str,
        members: list[Placed],
        weights: list[Weight],
        cards: int,
        loaded: str,
        reduced: str | None = None,
    ) -> None:
        self.members = members
        first, stored = members[0].parameter, weights[0].dtype
        used, self.trains = gathered_dtype(first, weights[0]), first.trains
        align, count = ALIGNMENT_BYTES // DTYPE_BYTES[used], 0
        places: list[range] = []
        for weight in weights:
            first_element = round_up(count, align)
            count = first_element + weight.num_elements
            places.append(range(first_element, count))
        own, is_cast, alone = ceil_div(count, cards), stored != used, cards == 1
        size = DTYPE_BYTES[used]
        self.cast = Storage(
            own * size if is_cast and not alone else 0, "communication", f"{name}: own part, cast", stream=CAST
        )
        whole = 0 if alone and not is_cast else own * cards * size  # NO_SHARD uses weights as they are, or a cast copy
        self.whole = Storage(whole, "communication", f"{name}: gathered weights", stream=CAST if alone else GATHER)
        # autograd puts it together on the stream that took the weights apart (_runtime_utils.py: _unshard)
        self.flat = Storage(own * cards * size, "gradient", f"{name}: gradients of the whole unit", stream=GATHER)
        reduced_size = DTYPE_BYTES[reduced or used]
        self.to_reduce = Storage(
            own * cards * reduced_size if reduced not in (None, used) and not alone else 0,
            "communication",
            f"{name}: gradients of the whole unit, cast to be reduced",
            stream=REDUCE,
        )
        self.reduced = Storage(own * reduced_size, "communication", f"{name}: reduced gradients", stream=REDUCE)
        self.gradient = Storage(own * DTYPE_BYTES[stored], "gradient", f"{name} gradients", "own part", stream=REDUCE)
        self.part = Weight(name, (own,), stored)
        self.places = dict(zip(members, places, strict=True))
        """Which elements of the flat weight each weight is."""
        self.from_host = Storage(self.part.num_bytes, "communication", f"{name}: own part from the host", stream=CAST)
        self.loading = LoadedUnit(name, own, cards, (loaded, stored, used))

    def views(self, gpu: int) -> dict[Placed, Weight]:
        """What a GPU's own part has of each weight (``use_orig_params``); none of those that are others' alone."""
        own = self.part.num_elements
        first, end = gpu * own, (gpu + 1) * own
        found = {}
        for one, place in self.places.items():
            count = min(place.stop, end) - max(place.start, first)
            if count > 0:
                found[one] = Weight(one.parameter.name, (count,), self.part.dtype)
        return found
