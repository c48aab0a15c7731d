"""DeepSpeed's ZeRO 1 and 2 as transformers and accelerate set them up: states, and at stage 2 gradients, are sharded.

Mirrors deepspeed 0.19's runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer): the weights of a parameter group are
one flat tensor, of which each GPU updates a part in fp32. Parts of the embedding, of layers and of the head need
different memory.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.fsdp import REDUCE
from vramplan.analytic.strategies.gradient_hooks import GradientHooks
from vramplan.analytic.strategies.states_on_host import StatesOnHost
from vramplan.analytic.strategies.stored_weights import loaded_dtype
from vramplan.dataclass import dataclass
from vramplan.inputs.sharding import Zero
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step

ALIGNMENT = 2
"""Elements that each GPU's part of a flat tensor is a multiple of (nccl_start_alignment_factor)."""
MOST_GPUS = 8
"""Of a job on at most so many GPUs, each is simulated. Of a larger one, some: in 4 of 432 jobs of full fine-tuning on
12, 16 and 32 GPUs, another one reserved more, by up to 17 %."""
NORM_BYTES = 8
"""Gradient norms are taken in fp64 (runtime/zero/stage_1_and_2.py: get_grad_norm_direct)."""


@lru_cache(maxsize=4096)
def flat(count: int, dtype: str, category: str, label: str, stream: int = 0) -> Storage:
    """A flat tensor."""
    return Storage(count * DTYPE_BYTES[dtype], category, label, f"{count:,} {dtype}", stream=stream)


@lru_cache(maxsize=4096)
def norm_of(count: int) -> Storage:
    """The temporary of a norm over so many elements of a gradient."""
    return Storage(NORM_BYTES * count, "temporary", "gradient in fp64 for its norm")


@dataclass(frozen=True, slots=True)
class Trained:
    """A trainable weight, and its place in its group's flat tensor."""

    placed: Placed
    group: int
    offset: int
    count: int

    def owners(self, part: int) -> range:
        """The GPUs whose parts it lies in."""
        return range(self.offset // part, (self.offset + self.count - 1) // part + 1)

    def elements_on(self, gpu: int, part: int) -> int:
        """Elements of it in a GPU's part."""
        return max(0, min(self.offset + self.count, (gpu + 1) * part) - max(self.offset, gpu * part))


class ZeroStage(GradientHooks):
    """What stages 1 to 3 have in common: gradients go into a bucket, which is reduced when it is full."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.dtype, self.cards = self.job.dtype, self.job.num_gpus
        self.trained = self._trained()
        self.zero = self.own_settings()
        self.bucket_size = self.zero.reduce_bucket_size or 0
        self.loaded: dict[tuple[int | None, str], Sequence[int]] = {}
        """Storages of the weights as they were loaded."""
        self.filled: list[Trained] = []
        """Weights whose gradients wait in the bucket."""
        self.num_filled = 0
        """Their elements."""
        self.large: list[int] = []
        """Gradients too large for the bucket."""
        self.states = StatesOnHost(record)

    def own_settings(self) -> Zero:
        """DeepSpeed's settings, with those that transformers fills in."""
        setting = self.step.setting
        return self.job.zero.of_width(setting.architecture.shape(setting.config).hidden)

    def _trained(self) -> dict[tuple[int | None, str], Trained]:
        """Trainable weights by group: the Trainer and OpenRLHF make two, with and without weight decay."""
        found, offsets = {}, [0, 0]
        splits = self.job.loop == "trainer" or self.job.loss == "kept_log_probs"
        for group in (0, 1):
            for one in self.own_weights():
                name, shape, dtype = one.parameter.name, one.parameter.shape, one.parameter.dtype
                without_decay = splits and not Weight(name, shape, dtype).decays
                if one.parameter.trains and without_decay == bool(group):
                    count = one.parameter.num_elements
                    found[one.layer, one.name] = Trained(one, group, offsets[group], count)
                    offsets[group] += count
        return found

    def load(self) -> None:
        """Load every weight whole."""
        for one, storages in self.load_whole(self.step.placed).items():
            self.loaded[one.layer, one.name] = storages

    def loaded_dtype(self, one: Placed) -> str | None:
        """The loaded dtype, if the engine casts the weight to another."""
        loaded = loaded_dtype(one.parameter, self.job)
        is_cast = one.parameter.quantize == "none" and one.parameter.dtype == self.dtype != loaded
        return loaded if is_cast and self.job.engine_casts else None

    def cast(self) -> None:
        """Cast all weights to one dtype, one after another (engine.py: _cast_module_mixed_precision)."""
        for one in self.step.placed:
            if self.loaded_dtype(one) is not None:
                key = one.layer, one.name
                before, self.loaded[key] = self.loaded[key], [self.record.allocate(s) for s in one.storages()]
                self.record.free_all(before)

    @property
    def group_sizes(self) -> list[int]:
        """Elements of each group that is not empty."""
        groups = groupby(self.trained.values(), key=lambda one: one.group)
        return [sum(one.count for one in group) for _, group in groups]

    def hold(self, parts: Container[str]) -> None:
        if not self.job.openrlhf.sleeps or self.job.offload != "none":
            return
        if "optimizer" in parts:
            self.states.come_back()
        else:
            self.states.leave()

    def take(self, layer: int | None, name: str, gradient: int) -> None:
        self.arrived(self.trained[layer, name], gradient)

    def arrived(self, one: Trained, gradient: int) -> None:
        """Put a weight's gradient into the bucket, or keep it apart if it is too large."""
        if self.num_filled + one.count > self.bucket_size:
            self.flush()
        self.filled.append(one)
        self.num_filled += one.count
        if one.count <= self.bucket_size:
            self.record.free(gradient)
        else:
            self.large.append(gradient)

    def flush(self) -> None:
        """Reduce the gradients in the bucket, and those too large for it."""
        if self.filled:
            self.reduce(self.filled)
        self.record.free_all(self.large)
        self.filled, self.large, self.num_filled = [], [], 0

    def passing(self, storage: Storage) -> None:
        """Allocate and free a temporary."""
        self.record.free(self.record.allocate(storage))

    def norm(self, count: int) -> None:
        """Record the temporary of a norm over so many gradient elements."""
        self.passing(norm_of(count))

    def to_host(self, count: int) -> None:
        """Record the temporaries of sending gradients to the host."""
        self.norm(count)
        self.passing(flat(count, "fp32", "temporary", "gradient in fp32, to the host"))

    def reduce(self, members: list[Trained]) -> None:
        """Record one reduction."""
        raise NotImplementedError


class ZeroStage12(ZeroStage):
    """One GPU's part of a run at stage 1 or 2."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        multiple = ALIGNMENT * self.cards
        self.parts = [ceil_div(size, multiple) * ALIGNMENT for size in self.group_sizes]
        """Elements of a GPU's part, by group."""
        self._elements = {id(one): one.elements_on(gpu, self.parts[one.group]) for one in self.trained.values()}
        self.own = sum(one.count for one in self.trained.values() if self.elements(one))
        """Elements of the weights that the own part has some of."""
        self.buckets: list[int] = []
        self.partitions: list[int] = []
        """Reduced gradients of weights in the own part; the first micro-batch's stay."""
        self.reduced = False
        self.stream = REDUCE if self.zero.overlap_comm else 0
        """CUDA stream of the reductions."""

    @property
    def gpus(self) -> Sequence[int]:
        """All GPUs, or of many: some at even distances, and the one with most to reduce of each sort.

        GPUs are of one sort if their parts hold the same weights outside of layers: embedding, norm, head.
        """
        if self.cards <= MOST_GPUS:
            return range(self.cards)
        whole, outside = [0] * self.cards, [frozenset[str]()] * self.cards
        for one in self.trained.values():
            for gpu in one.owners(self.parts[one.group]):
                whole[gpu] += one.count
                if one.placed.layer is None:
                    outside[gpu] |= {one.placed.name}
        most = {outside[gpu]: gpu for gpu in sorted(range(self.cards), key=whole.__getitem__)}
        even = {number * (self.cards - 1) // (MOST_GPUS - 1) for number in range(MOST_GPUS)}
        return sorted(even | set(most.values()))

    def elements(self, one: Trained) -> int:
        """Elements of a weight in the own part."""
        return self._elements[id(one)]

    @property
    def offloads(self) -> bool:
        """Whether the host holds the states and updates the weights."""
        return self.job.offload != "none"

    def prepare(self) -> None:
        """Move trainable weights into flat tensors, and copy the own parts in fp32 (``__init__``)."""
        record = self.record
        self.cast()
        for group, part in enumerate(self.parts):
            record.empty_cache()
            whole = flat(part * self.cards, self.dtype, "parameter", "flat weights that train")
            loaded = [number for key, one in self.trained.items() if one.group == group for number in self.loaded[key]]
            if whole.num_bytes > self.step.card.usable_bytes - record.live_bytes():  # by way of the host
                record.free_all(loaded)
                record.empty_cache()
                record.allocate(whole)
            else:
                record.allocate(whole)
                record.free_all(loaded)
            if not self.offloads:
                clone = record.allocate(flat(part, self.dtype, "temporary", "own part"))
                record.allocate(flat(part, "fp32", "optimizer_state", "fp32 copy of the own part"))
                record.free(clone)
        if self.offloads:
            largest = max(one.count for one in self.trained.values())
            record.allocate(flat(largest, self.dtype, "communication", "gradient on its way to the host"))
            return
        zeros = [record.allocate(flat(part, "fp32", "temporary", "zero gradients")) for part in self.parts]
        record.free_all(zeros)

    def arrived(self, one: Trained, gradient: int) -> None:
        """Allocate the bucket at the first gradient of a backward."""
        self._open()
        super().arrived(one, gradient)

    def _open(self) -> None:
        if not self.buckets:
            size = flat(self.bucket_size, self.dtype, "communication", "reduce bucket (reduce_bucket_size)")
            count = 2 if self.job.zero.overlap_comm else 1
            self.buckets = [self.record.allocate(size) for _ in range(count)]

    def reduce(self, members: list[Trained]) -> None:
        """Reduce slices of several owners in joined copies (average_tensor); the own ones stay.

        A copy ends with the slice that exceeds the bucket's size, and a slice alone is not copied
        (allreduce_and_scatter).
        """
        record = self.record
        runs, before = list[int](), -1
        for one in members:
            part = self.parts[one.group]
            for owner in one.owners(part):
                if owner != before:
                    runs.append(0)
                runs[-1] += one.elements_on(owner, part)
                before = owner
        joined, number = 0, 0
        for run in [*runs, 0]:
            joined, number = joined + run, number + 1
            if joined > self.bucket_size or run == 0:
                if number > 1 + (run == 0):
                    self.passing(flat(joined, self.dtype, "communication", "bucket, by owner", self.stream))
                joined, number = 0, 0
        owns_some = any(map(self.elements, members))
        if owns_some and not self.reduced and not self.offloads:
            self.reduced = True
            label = "reduced gradients of weights in the own part"
            self.partitions.append(record.allocate(flat(self.own, self.dtype, "gradient", label, self.stream)))
        if self.offloads and self.is_last:
            for one in members:
                self.to_host(self.elements(one))

    def backward_ends(self) -> None:
        """The epilogue frees the bucket."""
        self.flush()
        self._send_gradients()
        self.record.free_all(self.buckets)
        self.record.free_all(self.partitions[1:])
        self.buckets, self.partitions, self.reduced = [], self.partitions[:1], False

    def _send_gradients(self) -> None:
        """Reduce bucket by bucket, those of several owners as a whole (use_multi_rank_bucket_allreduce)."""
        overlaps, size = self.zero.overlap_comm, DTYPE_BYTES[self.dtype]
        filled = 0
        for one in reversed(self.trained.values()):  # a simulated step may leave out small gradients
            if filled + one.count > self.bucket_size:
                self.send("all_reduce", filled * size, overlaps)
                filled = 0
            filled += one.count
        self.send("all_reduce", filled * size, overlaps)
        if self.offloads and self.job.gradient_accumulation_steps > 1 and self.job.strategy == "zero2":
            self.send("from_host", sum(self.parts) * size, overlaps)  # async_accumulate_grad_in_cpu_via_gpu
            self.send("to_host", sum(self.parts) * size, overlaps)
        if self.offloads and self.is_last:
            self.send("to_host", sum(self.parts) * DTYPE_BYTES["fp32"], overlaps)

    def optimize(self, first: bool) -> None:
        """Update the own parts: one flat fp32 tensor for each group; then gather those of all GPUs (step)."""
        for part in self.parts:
            self.send("all_gather", part * self.cards * DTYPE_BYTES[self.dtype])
        if self.offloads:
            self.send("from_host", sum(self.parts) * DTYPE_BYTES[self.dtype])
            self.sent.updated_on_host += sum(self.parts)
            return
        record = self.record
        for one in self.trained.values():
            self.norm(self.elements(one))
        for group, part in enumerate(self.parts):
            joined = record.allocate(flat(part, self.dtype, "temporary", "gradients of the own part"))
            if self.dtype != "fp32":
                gradient = record.allocate(flat(part, "fp32", "gradient", "gradients of the own part in fp32"))
                record.free(joined)
            else:
                gradient = joined
            if group == len(self.parts) - 1:
                record.free_all(self.partitions)
                self.partitions = []
            optimizer_of(self.job.optimizer).step(record, [Weight("own part", (part,), "fp32")], first)
            record.free(gradient)
