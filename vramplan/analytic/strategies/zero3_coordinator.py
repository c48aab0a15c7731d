"""Which weights are gathered at a time under ZeRO-3: DeepSpeed's parameter coordinator after its first steps.

Mirrors deepspeed 0.19's runtime/zero/partitioned_param_coordinator.py once it knows the order of the modules: weights
are gathered when their module runs, those of the modules to come ahead of time, and what is used again soon stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from vramplan.analytic.strategies.fsdp import COMPUTE, GATHER
from vramplan.analytic.strategies.micro_steps import State
from vramplan.inputs.sharding import Zero
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.step_time.link_rates import Kind


class PartitionedWeight(NamedTuple):
    """A weight of which every GPU has a part."""

    number: int
    label: str
    num_elements: int
    gathered_bytes: int
    """Of all parts, padding included."""
    own_bytes: int
    whole_bytes: int
    """As it is loaded, without padding."""
    stays: bool
    """Whether it stays gathered because it is small (stage3_param_persistence_threshold)."""
    viewed: bool = False
    """Whether backward keeps a view of it: its memory outlives its release until backward ends."""
    trains: bool = True
    dtype: str = ""
    """As it is gathered."""
    held: bool = False
    """Whether the graph holds the gathered weight until the graph is dropped: DeepSpeed only drops its reference."""


class Visit(NamedTuple):
    """A module's turn in the step."""

    module: Hashable
    """None for a module without weights of its own, around others."""
    weights: tuple[PartitionedWeight, ...]
    lasts: bool = False
    """Whether the modules that follow run inside it."""
    late: bool = False
    """Whether nothing tells when its backward is over."""
    recomputes: bool = False
    """Whether its backward is the first that may want what checkpointing dropped, and recomputes the layer."""


class Trace:
    """The visits of a forward, and of the backward behind it, as the coordinator recorded them."""

    def __init__(self, visits: Sequence[Visit]) -> None:
        self.visits = visits
        self.order = [
            (weight, step)
            for step, visit in enumerate(visits)
            for weight in sorted(visit.weights, key=lambda weight: weight.number)
        ]
        self.uses: dict[int, list[int]] = {}
        """The visits that use each weight, in order."""
        for weight, step in self.order:
            self.uses.setdefault(weight.number, []).append(step)
        elements = (sum(weight.num_elements for weight in visit.weights) for visit in visits)
        self.passed = list(accumulate(elements, initial=0))
        """Elements of all visits before each."""


class Gathered(NamedTuple):
    """A coordinator's state between two micro-steps, with numbers of weights; its fields are named as there."""

    mode: str
    trace: int
    """The number of the pass that was recorded."""
    places: int
    """How many places are known where weights are released or stay; none is forgotten."""
    in_use: tuple[tuple[int, int], ...]
    live: int
    recomputed: tuple[tuple[int, PartitionedWeight], ...]
    whole: tuple[int, ...]
    outlived: tuple[int, ...]
    held: tuple[int, ...]


class Gathering:
    """Several weights gathered in a buffer for each dtype, copied out when the first is waited for; one in its own."""

    __slots__ = ("buffers", "copied", "waited", "weights")

    def __init__(self, weights: list[PartitionedWeight], buffers: list[int]) -> None:
        self.weights, self.buffers = weights, buffers
        self.copied, self.waited = False, 0


@lru_cache(maxsize=4096)
def _gathered(num_bytes: int, label: str, stream: int) -> Storage:
    """What is gathered, on the stream of the gathers."""
    return Storage(num_bytes, "communication", label, stream=stream)


INVALID, RECORD, COMPLETE = "invalid", "record", "complete"
"""Modes of the trace (ZeRoTraceMode): lost, being recorded, known."""


class Coordinator:
    """Gathers and releases along the visits of each forward of a micro-step, the last one's backward included.

    One forward is recorded, and the next one expected to be like it; the first module that is not ends that.
    """

    def __init__(
        self,
        record: Recorder,
        passes: Sequence[Sequence[Visit]],
        zero: Zero,
        from_host: bool,
        send: Callable[[Kind, int, bool], None],
    ) -> None:
        self.record, self.zero, self.send = record, zero, send
        self.stream = GATHER if zero.overlap_comm else COMPUTE
        """Of the gathers (parameter_offload.py: __allgather_stream)."""
        self.from_host = from_host
        """Whether a GPU's part is copied from the host each time."""
        self.traces = [Trace(visits) for visits in passes]
        self.whole: dict[int, int] = {}
        """Storages of gathered weights."""
        self.coming: dict[int, Gathering] = {}
        """Weights being gathered."""
        self.in_use: dict[int, int] = {}
        self.outlived: dict[int, int] = {}
        """Storages of released weights that backward still views."""
        self.live = 0
        self.held: dict[int, int] = {}
        """Storages of released weights that the graph holds."""
        self.recomputed: dict[int, PartitionedWeight] = {}
        """Frozen weights that a recomputed forward used: the module that began it releases them after its backward."""
        self.keeps_recomputed = False
        """Whether that is the layer: reentrant checkpointing recomputes before any backward within the layer."""
        self.stays: dict[Hashable, bool] = {}
        """Whether a weight stays behind a module, by its place, if there are several forwards."""
        self.mode = INVALID
        self.running = self.trace = 0
        """The pass that runs, and the one that was recorded."""
        self.builds_graph = True
        self.queue: deque[tuple[PartitionedWeight, int]] = deque()
        self.fetched: dict[int, int] = {}
        self.step = 0

    def restart(self, number: int, builds_graph: bool = True) -> None:
        """Begin a forward, by its number in the micro-step (reset_step)."""
        self._release_coming()
        if self.mode == RECORD:
            self.mode, self.trace = COMPLETE, self.running
        elif self.mode == INVALID:
            self.mode = RECORD
        self.running, self.builds_graph = number, builds_graph
        self.queue = deque(self.traces[self.trace].order) if self.mode == COMPLETE else deque()
        self.fetched = {}
        self.step = 0

    def run_part(self, number: int) -> None:
        """Begin a forward of a module that is called by itself: no hook of the engine's forward begins a trace."""
        self._release_coming()
        self.running, self.builds_graph, self.step = number, False, 0
        self.queue, self.fetched = deque(), {}

    def _release_coming(self) -> None:
        """Wait for what is on its way, and release it; its buffers go in the end (_clean_inflight_param_registry)."""
        several = {id(one): one for one in self.coming.values()}.values()
        for one in several:
            buffers, one.buffers = one.buffers, one.buffers if len(one.weights) == 1 else []
            for weight in one.weights:
                self._wait(weight)
                self.release(weight)
            one.buffers = buffers
        for one in several:
            if len(one.weights) > 1:
                self.record.free_all(one.buffers)

    def state(self) -> State | None:
        """Which weights are gathered between two micro-steps; None while some are on their way."""
        if self.coming:
            return None
        used = sorted((number, times) for number, times in self.in_use.items() if times)
        storages = (self.whole, self.outlived, self.held)
        mode, trace = (
            (COMPLETE, self.running) if self.mode == RECORD else (self.mode, self.trace)
        )  # as restart finds it
        return State(
            Gathered(
                mode,
                trace,
                len(self.stays),
                tuple(used),
                self.live,
                tuple(self.recomputed.items()),
                *map(tuple, storages),
            ),
            tuple(storage for numbers in storages for storage in numbers.values()),
        )

    def resume(self, state: State) -> None:
        """Go on from a state of the end of a micro-step."""
        key, storages = state.key, iter(state.storages)
        assert isinstance(key, Gathered)
        self.in_use, self.live, self.recomputed = dict(key.in_use), key.live, dict(key.recomputed)
        self.whole, self.outlived, self.held = (
            {number: next(storages) for number in numbers} for numbers in (key.whole, key.outlived, key.held)
        )
        self.mode, self.running, self.trace = key.mode, key.trace, key.trace

    def add_passes(self, passes: Sequence[Sequence[Visit]]) -> int:
        """Add forwards that are no part of a micro-step; the number of the first."""
        self.traces += [Trace(visits) for visits in passes]
        return len(self.traces) - len(passes)

    def forget(self) -> None:
        """Forget the order of the modules (_invalidate_trace)."""
        self.mode = INVALID
        self.queue.clear()
        self._release_coming()

    @property
    def visits_left(self) -> bool:
        """Whether modules of this pass have not run yet."""
        return self.step < len(self.traces[self.running].visits)

    def enter(self) -> Visit:
        """Run the next module: gather its weights, and request those of later modules."""
        visit, step = self.traces[self.running].visits[self.step], self.step
        self._compare(visit)
        if visit.weights:
            self._gather([weight for weight in visit.weights if not self._is_there(weight)])
            for weight in visit.weights:
                self.in_use[weight.number] = self.in_use.get(weight.number, 0) + 1
                self._wait(weight)
            waiting = {weight.number for weight in visit.weights if self.fetched.get(weight.number, -1) < step}
            while self.queue and waiting:
                weight, at = self.queue.popleft()
                self.fetched[weight.number] = at
                waiting.discard(weight.number)
        self.step += 1
        if self.mode == COMPLETE:
            self._gather_ahead()
        return visit

    def _compare(self, visit: Visit) -> None:
        """Forget the order of the modules if another one runs than was recorded (trace_prologue)."""
        if self.mode != COMPLETE or self.trace == self.running:
            return
        expected = self.traces[self.trace].visits
        if self.step >= len(expected) or expected[self.step].weights != visit.weights:
            self.forget()

    def _gather_ahead(self) -> None:
        """Request the weights of later modules."""
        room = min(self.zero.max_live_parameters - self.live, self.zero.prefetch_bucket_size or 0)
        ahead: dict[int, PartitionedWeight] = {}
        count = 0
        while self.queue and count < room:
            weight, at = self.queue.popleft()
            self.fetched[weight.number] = max(self.fetched.get(weight.number, -1), at)
            if not self._is_there(weight) and weight.number not in ahead:
                ahead[weight.number] = weight
                count += weight.num_elements
        if ahead:
            self._gather(list(ahead.values()))

    def leave(self, visit: Visit, saves: bool = False, recomputes: bool = False) -> None:
        """End a module: drop weights that are not needed soon.

        `saves`: its forward saved them for backward; `recomputes`: checkpointing ran it again (release_sub_module), and
        holds a view of what that saved (torch 2.13, utils/checkpoint.py: _recomputation_hook).
        """
        if not recomputes and (visit.module is not None or visit.recomputes) and not self.keeps_recomputed:
            self.release_recomputed()
        for weight in visit.weights:
            if recomputes and not (weight.trains or weight.stays) and weight.number not in self.recomputed:
                self.recomputed[weight.number] = weight  # stays in use
                continue
            self.in_use[weight.number] -= 1
            if weight.number in self.outlived and not saves:
                self.record.free(self.outlived.pop(weight.number))
            if self.mode != COMPLETE or not self._stays(weight, visit):
                self.release(weight, saves and (weight.viewed or recomputes))

    def release_recomputed(self) -> None:
        """Release the frozen weights that a recomputed forward used."""
        for weight in self.recomputed.values():
            self.in_use[weight.number] -= 1
            self.release(weight)
        self.recomputed = {}

    def end_backward(self, visits: Sequence[Visit]) -> None:
        """End the modules of which nothing tells that their backward is over (release_backward_leftovers)."""
        for visit in reversed(visits):
            for weight in visit.weights:
                self.in_use[weight.number] -= 1
                if not weight.stays:
                    self.release(weight)
        self.release_recomputed()
        self.record.free_all(self.outlived.values())
        self.outlived.clear()

    def release(self, weight: PartitionedWeight, saves: bool = False) -> None:
        """Drop a weight that is gathered and not in use."""
        if weight.number in self.whole and not self.in_use.get(weight.number):
            whole = self.whole.pop(weight.number)
            self.live -= weight.num_elements
            if saves and weight.number not in self.outlived:
                self.outlived[weight.number] = whole
            elif (
                weight.held and self.builds_graph and weight.number not in self.held
            ):  # what is gathered again for a recomputation is not
                self.held[weight.number] = whole
            else:
                self.record.free(whole)

    def drop_held(self) -> None:
        """Free the weights that the dropped graph held."""
        self.record.free_all(self.held.values())
        self.held.clear()

    def release_all(self, weights: Sequence[PartitionedWeight]) -> None:
        """Release all weights, since the optimizer changes their parts."""
        self.in_use.clear()
        for weight in weights:
            if weight.number in self.coming:
                self._wait(weight)
            self.release(weight)

    def gather_small(self, weights: Sequence[PartitionedWeight]) -> None:
        """Gather the weights that stay gathered."""
        for weight in weights:
            if weight.stays and not self._is_there(weight):
                self._gather([weight])
                self._wait(weight)

    def _is_there(self, weight: PartitionedWeight) -> bool:
        return weight.number in self.whole or weight.number in self.coming

    def _gather(self, weights: list[PartitionedWeight]) -> None:
        """One weight's buffer is the weight itself; several of a dtype share one (all_gather_coalesced)."""
        if not weights:
            return
        if len(weights) == 1:
            (weight,) = weights
            self.live += weight.num_elements
            self.coming[weight.number] = Gathering(weights, [self._buffer(weights)])
            return
        weights.sort(key=lambda weight: weight.number)
        self.live += sum([weight.num_elements for weight in weights])
        dtypes = {weight.dtype for weight in weights}
        groups = [[one for one in weights if one.dtype == dtype] for dtype in sorted(dtypes)]
        buffers = [self._buffer(group) for group in groups]
        several = Gathering([weight for group in groups for weight in group], buffers)
        for weight in weights:
            self.coming[weight.number] = several

    def _buffer(self, weights: list[PartitionedWeight]) -> int:
        parts = []
        if self.from_host:
            size = sum(weight.own_bytes for weight in weights)
            self.send("from_host", size, self.zero.overlap_comm)
            parts = [self.record.allocate(_gathered(size, "own parts from the host", self.stream))]
        size = sum([weight.gathered_bytes for weight in weights])
        self.send("all_gather", size, self.zero.overlap_comm)
        label = f"{weights[0].label}, gathered" if len(weights) == 1 else "weights gathered together"
        buffer = self.record.allocate(_gathered(size, label, self.stream))
        self.record.free_all(parts)
        return buffer

    def _wait(self, weight: PartitionedWeight) -> None:
        found = self.coming.pop(weight.number, None)
        if found is None:
            return
        if len(found.weights) == 1:
            (self.whole[weight.number],) = found.buffers
        else:
            if not found.copied:
                found.copied = True
                for one in found.weights:
                    self.whole[one.number] = self.record.allocate(
                        _gathered(one.gathered_bytes, f"{one.label}, gathered", self.stream)
                    )
            found.waited += 1
            if found.waited == len(found.weights):
                self.record.free_all(found.buffers)

    def _stays(self, weight: PartitionedWeight, visit: Visit) -> bool:
        """Whether it is not released; asked once for a module's place, whatever was recorded (__params_to_release)."""
        if len(self.traces) == 1:
            return self._is_needed(weight)
        place = self.step, tuple([one.number for one in visit.weights]), weight.number
        if place not in self.stays:
            self.stays[place] = self._is_needed(weight)
        return self.stays[place]

    def _is_needed(self, weight: PartitionedWeight) -> bool:
        """Whether it is small, was fetched for later, or is used again within `max_reuse_distance` elements."""
        if weight.stays or self.fetched.get(weight.number, -1) > self.step:
            return True
        trace = self.traces[self.trace]
        uses = trace.uses.get(weight.number, [])
        following = bisect_left(uses, self.step)
        if following == len(uses):
            return False
        return trace.passed[uses[following]] - trace.passed[self.step] < self.zero.max_reuse_distance
