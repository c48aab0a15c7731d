"""Every GPU holds the whole model: one GPU alone, or torch's DistributedDataParallel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, cast

from vramplan.analytic.autograd.ops import TORCHAO_NF4
from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.device_map import warmup_bytes
from vramplan.memory.kernel_buffers import norm_parts
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.overheads import ddp_buckets, ddp_first_buckets
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.step_time.communication import Phase, Sent
from vramplan.step_time.link_rates import Kind
from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.step_record import RecordedWeight
    from vramplan.analytic.strategies.micro_steps import State
    from vramplan.analytic.unfolded_step import Placed, Step


def _natural_key(one: Placed) -> list[tuple[bool, int, str]]:
    """Key to sort the names within a layer, numbers by their value."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in one.name.split(".")]


class Strategy:
    """A single GPU or DDP; the methods stand in the order of a run, and other strategies override them."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        self.step, self.record, self.job, self.gpu = step, record, step.job, gpu
        self.phase = ""
        self.sent = Sent()
        """What this GPU sends and receives."""
        self.first_buckets: list[int] = []
        """DDP's buckets, as long as they are those of the first backward."""
        self.has_reduced = False

    @property
    def gpus(self) -> Sequence[int]:
        """The GPUs that need different memory; only the first if all need the same."""
        return (0,)

    @property
    def device(self) -> int:
        """The number of the GPU in its process, and in the simulated step."""
        return 0

    def own_weights(self) -> list[Placed]:
        """The weights of the model."""
        return self.step.placed

    @property
    def is_last(self) -> bool:
        """Whether the optimizer steps after this micro-batch."""
        return self.phase == f"backward.{self.step.micro_steps - 1}"

    def send(self, kind: Kind, num_bytes: int, hidden: bool = False, between_replicas: bool = False) -> None:
        """Send or receive a tensor in the current phase; `hidden`: beside computation."""
        phase, *names = self.phase.split(".")
        if phase in ("reference", "teacher"):  # a forward without gradients
            phase = "forward"
        is_last = phase == "optimizer" or int(names[-1]) == self.step.micro_steps - 1
        self.sent.add(
            kind,
            cast("Phase", phase),
            num_bytes,
            is_last=is_last,
            is_hidden=hidden,
            between_replicas=between_replicas,
        )

    def load(self) -> None:
        """Load the model onto the GPU."""
        if any(weight.stored for weight in self.step.record.weights):
            self.load_whole(self.step.placed)
            return
        known: dict[tuple[RecordedWeight, bool], list[Storage]] = {}
        storages: list[Storage] = []
        for one in self._begin_loading(self.step.placed):
            key = one.parameter, one.layer is None
            storages += known.get(key) or known.setdefault(key, one.storages())
        self.record.allocate_all(storages)

    def load_whole(self, placed: Sequence[Placed]) -> dict[Placed, Sequence[int]]:
        """Load all of these weights; the numbers of their storages."""
        ordered = self._begin_loading(placed)
        loaded = {one: self._loaded(one) for one in ordered if not one.parameter.is_adapter}
        for one in placed if self.job.prepare_for_kbit_training else ():
            if self._is_cast_by_peft(one):
                before = loaded[one]
                loaded[one] = self.record.allocate_all(one.storages(self.loaded_dtype(one)))
                self.record.free_all(before)
        return loaded | {one: self._loaded(one) for one in ordered if one.parameter.is_adapter}

    def _begin_loading(self, placed: Sequence[Placed]) -> Sequence[Placed]:
        """The weights in the order that they are loaded.

        transformers requests the memory of what it loads onto the GPU in one piece before (modeling_utils.py:
        caching_allocator_warmup); it goes by name (core_model_loading.py: dot_natural_key), which puts the head first.
        """
        if not self.job.is_mapped:
            return placed
        model = [one for one in placed if not one.parameter.is_adapter]
        size = warmup_bytes([one.parameter for one in model], self.job, self.step.card)
        cached = Storage(size, "reserved_unused", "warm-up of the allocator", in_kernel=True)
        self.record.free(self.record.allocate(cached))
        head = [one for one in model if one.parameter.name.startswith("lm_head")]
        by_name: list[Placed] = []
        for layer, group in groupby(model, key=lambda one: one.layer):
            several = list(group)
            by_name += several if layer is None else sorted(several, key=_natural_key)
        return list(dict.fromkeys((*head, *by_name, *placed)))

    def loaded_dtype(self, one: Placed) -> str | None:
        """Dtype that a weight is loaded in, if it is used in another."""

    def _is_cast_by_peft(self, one: Placed) -> bool:
        """Whether prepare_model_for_kbit_training casts a loaded weight to fp32 (PEFT 0.21, utils/other.py).

        It casts one after another, and their former memory stays in the piece that transformers requested.
        """
        weight = one.parameter
        kept = weight.stored or weight.is_adapter or self.job.dtype == "fp32"
        return self.job.prepare_for_kbit_training and not kept

    def _loaded(self, one: Placed) -> Sequence[int]:
        """Load a weight; bitsandbytes quantizes it on the GPU, and its scales (0.50, functional.py: quantize_4bit).

        So does torchao (0.14.1, dtypes/nf4tensor.py: convert_to_norm_float_weight).
        """
        weight, record = one.parameter, self.record
        if not weight.stored:
            dtype = self.job.dtype if self._is_cast_by_peft(one) else self.loaded_dtype(one)
            return record.allocate_all(one.storages(dtype))
        size = weight.num_elements * DTYPE_BYTES[self.job.dtype]
        before = [record.allocate(Storage(size, "temporary", "weight to be quantized"))]
        stored = one.storages()
        if weight.quantize == "nf4-double":  # the scales, and the scales less their mean
            scales = Storage(4 * stored[1].num_bytes, "temporary", "scales to be quantized")
            before += [record.allocate(scales), record.allocate(scales)]
        if weight.quantize == TORCHAO_NF4:
            before.append(record.allocate(Storage(size, "temporary", "scaled weight")))
            before.append(record.allocate(Storage(weight.num_elements, "temporary", "levels of a weight")))
        found = record.allocate_all(stored)
        record.free_all(reversed(before))
        return found

    def prepare(self) -> None:
        """Wrap the model: DDP allocates its buckets."""
        if self.job.processes > 1:
            for bucket in ddp_first_buckets((weight.dtype, weight.num_bytes) for weight in self.step.trained):
                self.first_buckets.append(self.record.allocate(bucket))

    def _rebuild_buckets(self) -> None:
        """Replace DDP's first buckets; all are freed before (torch 2.13, reducer.cpp: initialize_buckets)."""
        self.record.free_all(self.first_buckets)
        self.first_buckets = []
        for bucket in ddp_buckets([weight.num_bytes for weight in self.step.trained]):
            self.record.allocate(bucket)

    def on_this_card(self, events: Sequence[int]) -> Sequence[int]:
        """The simulated step's events that happen on this GPU."""
        return events

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """Record one layer's part of a phase, whose storages are numbered from `offset`."""
        self.phase = piece.phase
        if self.first_buckets and self.has_reduced and piece.phase.startswith("forward"):
            self._rebuild_buckets()
        self.record.extend(events, offset)

    def hold(self, parts: Container[str]) -> None:
        """Have these on the GPU, of what may wait in host memory: "weights", "optimizer"."""

    def state(self) -> State | None:
        """What the next micro-step depends on; None if it is not known, and the micro-step has to be recorded."""
        return None

    def resume(self, state: State) -> None:
        """Go on from this state, one of those that :meth:`state` returns."""

    @contextmanager
    def scoring(self, scored: Step, by_engine: bool = True) -> Iterator[None]:
        """Inside, sections are those of a forward without gradients that is no part of the step.

        `by_engine`: whether the whole model runs, or a module within it that is called by itself.
        """
        step, self.step, self.phase = self.step, scored, ""
        try:
            yield
        finally:
            self.step = step

    def scoring_ends(self) -> None:
        """End the forwards without gradients that score completions."""

    def generation_begins(self) -> None:
        """Begin a generation by transformers."""

    def shares_come_back(self) -> None:
        """What the host has of the weights is on the GPU too from now on, until the optimizer's step."""

    def generation_ends(self) -> None:
        """End a generation by transformers."""

    def forward_ends(self) -> None:
        """End a forward."""

    def backward_ends(self) -> None:
        """End the backward of a micro-batch: DDP reduces each bucket when it is full.

        accelerate leaves that to the last micro-batch (1.15, accelerator.py: no_sync); a plain loop does not.
        """
        if self.job.processes > 1 and (self.is_last or self.job.loop == "plain"):
            self.has_reduced = True
            for bucket in ddp_buckets([weight.num_bytes for weight in self.step.trained]):
                self.send("all_reduce", bucket.num_bytes, hidden=True)

    def optimize(self, first: bool) -> None:
        """One optimizer step."""
        self.update(self.step.updated, first)

    def update(self, weights: list[Weight], first: bool) -> None:
        """Update these weights."""
        record = self.record
        step = optimizer_of(self.job.optimizer).step_in(self.job.loop)
        if self.job.loop == "trainer" and self.job.value_model is None:  # clip_grad_norm_
            norm = Storage(4, "temporary", "gradient norms", "scalar")
            norms: list[int] = []
            kinds = Counter([(weight.dtype, weight.shape) for weight in weights])
            for dtype in dict.fromkeys(dtype for dtype, _ in kinds):
                count = sum(kinds[kind] for kind in kinds if kind[0] == dtype)
                size = norm_parts(count, max(prod(shape) for other, shape in kinds if other == dtype))
                parts = record.allocate(Storage(size, "temporary", "parts of gradient norms", "fp32", in_kernel=True))
                norms += record.allocate_all([norm] * count)
                record.free(parts)
            norms += record.allocate_all([norm] * self.norms_from_elsewhere())
            record.free_all(reversed(norms))
        for group in self.groups(weights):
            step(record, group, first)

    def norms_from_elsewhere(self) -> int:
        """Number of gradient norms that other GPUs send to this one."""
        return 0

    def groups(self, weights: list[Weight]) -> list[list[Weight]]:
        """The optimizer's parameter groups; the Trainer makes two, with and without weight decay."""
        if self.job.loop != "trainer":
            return [weights] if weights else []
        both = [w for w in weights if w.decays], [w for w in weights if not w.decays]
        return [group for group in both if group]

    def gathered_bytes(self) -> int:
        """Highest bytes of gathered weights in a forward without gradients."""
        return 0

    def passing_bytes(self) -> int:
        """Of them, those that the strategy does not gather as a generation begins."""
        return self.gathered_bytes()

    def drop_gradients(self, offset: int) -> None:
        """``zero_grad``."""
        self.record.free_all([offset + place for place in self.step.gradients_of(self.step.placed)])
