"""Every card holds the whole model: one card alone, or torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.device_map import asked_at_once
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.overheads import ddp_buckets
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.played_step import Placed, Step


class Strategy:
    """What a strategy does, in the order that a run comes to it; others differ from this one."""

    def __init__(self, step: Step, record: Recorder) -> None:
        self.step, self.record, self.job = step, record, step.job
        self.phase = ""

    @property
    def is_last(self) -> bool:
        """Whether the optimizer steps behind this micro-batch."""
        return self.phase == f"backward.{self.step.micro_steps - 1}"

    def load(self) -> None:
        """The model is on the card."""
        self.load_whole(self.step.placed)

    def load_whole(self, placed: Sequence[Placed]) -> dict[Placed, list[int]]:
        """Every weight as it was loaded.

        What transformers loads onto the card it asks for in one piece before (modeling_utils.py:
        caching_allocator_warmup); it goes by name (core_model_loading.py: dot_natural_key), which puts the head first.
        """
        if self.job.is_mapped:
            model = [one.parameter for one in placed if not one.parameter.is_adapter]
            size = asked_at_once(model, self.job, self.step.card)
            cached = Storage(size, "reserved_unused", "warm-up of the allocator", in_kernel=True)
            self.record.free(self.record.allocate(cached))
            head = [one for one in placed if one.parameter.name.startswith("lm_head") and not one.parameter.is_adapter]
            placed = list(dict.fromkeys((*head, *placed)))
        return {one: self._loaded(one) for one in placed}

    def loaded_dtype(self, one: Placed) -> str | None:
        """What a weight is loaded in, where it is used in another dtype."""

    def _loaded(self, one: Placed) -> list[int]:
        """One weight; bitsandbytes quantizes it on the card, and its scales (0.50, functional.py: quantize_4bit)."""
        weight, record = one.parameter, self.record
        if not weight.stored:
            return [record.allocate(storage) for storage in one.storages(self.loaded_dtype(one))]
        size = weight.num_elements * DTYPE_BYTES[self.job.dtype]
        before = [record.allocate(Storage(size, "temporary", "weight to be quantized"))]
        stored = one.storages()
        if weight.quantize == "nf4-double":  # themselves, and less their mean
            scales = Storage(4 * stored[1].num_bytes, "temporary", "scales to be quantized")
            before += [record.allocate(scales), record.allocate(scales)]
        found = [record.allocate(storage) for storage in stored]
        record.free_all(reversed(before))
        return found

    def prepare(self) -> None:
        """What goes around the model is made."""
        if self.job.data_parallel > 1:
            for bucket in ddp_buckets([weight.num_bytes for weight in self.step.trained]):
                self.record.allocate(bucket)

    def on_this_card(self, events: Sequence[int]) -> Sequence[int]:
        """Those of the played step's events that happen on this card."""
        return events

    def play(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """One layer's share of a phase, whose storages are numbered from `offset`."""
        self.phase = piece.phase
        self.record.extend(events, offset)

    def backward_ends(self) -> None:
        """The backward of a micro-batch is over."""

    def optimize(self, first: bool) -> None:
        """One optimizer step."""
        self.update(self.step.updated, first)

    def update(self, weights: list[Weight], first: bool, optimizer: str | None = None) -> None:
        """What the job's optimizer, or another, does to these weights."""
        record = self.record
        step = optimizer_of(optimizer or self.job.optimizer).step
        if self.job.loop == "trainer":  # clip_grad_norm_
            norm = Storage(4, "temporary", "gradient norms", "scalar")
            norms = [record.allocate(norm) for _ in range(len(weights) + self.norms_from_elsewhere())]
            record.free_all(reversed(norms))
        for group in self.groups(weights):
            step(record, group, first)

    def norms_from_elsewhere(self) -> int:
        """Norms of other cards' gradients that come to this one."""
        return 0

    def groups(self, weights: list[Weight]) -> list[list[Weight]]:
        """The optimizer's parameter groups; the Trainer makes two, with and without weight decay."""
        if self.job.loop != "trainer":
            return [weights] if weights else []
        both = [w for w in weights if w.decays], [w for w in weights if not w.decays]
        return [group for group in both if group]

    def gathered_bytes(self) -> int:
        """Most weights that are gathered at a time in a forward alone."""
        return 0

    def drop_gradients(self, offset: int) -> None:
        """``zero_grad``."""
        self.record.free_all([offset + place for place in self.step.gradients_of(self.step.placed)])
