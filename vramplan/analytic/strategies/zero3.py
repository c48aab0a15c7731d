"""DeepSpeed's ZeRO 3 as transformers and accelerate set it up: weights, gradients and states are sharded.

Mirrors deepspeed 0.19's runtime/zero/stage3.py and partition_parameters.py. Of a weight's n elements, whatever its
shape, every GPU has ceil(n / GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.fsdp import COMPUTE, REDUCE
from vramplan.analytic.strategies.micro_steps import State
from vramplan.analytic.strategies.stored_weights import divided
from vramplan.analytic.strategies.zero3_coordinator import Coordinator, PartitionedWeight, Visit
from vramplan.analytic.strategies.zero3_visits import LOSS, MIXTURE, Modules, Turn
from vramplan.analytic.strategies.zero12 import Trained, ZeroStage, flat
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step


class ZeroStage3(ZeroStage):
    """One GPU's part of a run."""

    is_reference = False
    """Whether it is the second model that gives a reference."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        placed = self.own_weights()
        self.weights = [self._divided(number, one) for number, one in enumerate(placed)]
        self.modules = Modules(step, placed, self.weights)
        self.late: list[tuple[Trained, int]] = []
        """Gradients of a mixture that is one module, which are taken when its backward is over."""
        passes = self.modules.passes(self.is_reference)
        self.forwards = len(passes)
        """Forwards of a micro-step."""
        self.scored: dict[int, Modules] = {}
        """Modules of forwards without gradients that are no part of the step, by the number of their pass."""
        self.coordinator = Coordinator(record, passes, self.zero, self.waits_on_host, self.send)
        self.recomputes = self.job.checkpointing == "full"
        self.coordinator.keeps_recomputed = self.recomputes and self.job.reentrant
        self.begins = True
        """Whether the next module begins a forward."""
        self.first: Turn | None = None
        """The turn that began the forward."""
        self.passes = 0
        """Forwards of micro-steps that began."""
        self.scores: int | None = None
        """The number of the pass that scores."""
        self.by_engine = True
        """Whether the engine's own forward runs, which records the order of the modules or expects it."""
        self.current: Visit | None = None
        self.around: list[Visit] = []
        """Modules that began and did not end: one around it with weights of its own, those whose end nothing tells."""
        self.running: Turn | None = None
        self.running_layer: int | None = None

    @property
    def waits_on_host(self) -> bool:
        """Whether each GPU's part of the weights is in host memory (offload_param)."""
        return self.job.offload == "all"

    def _divided(self, number: int, one: Placed) -> PartitionedWeight:
        parameter = one.parameter
        weight = divided(parameter, self.job)
        dtype = parameter.dtype if parameter.quantize == "none" else weight.dtype
        count, size = weight.num_elements, DTYPE_BYTES[dtype]
        threshold = self.zero.param_persistence_threshold or 0
        own = ceil_div(count, self.cards) * size
        whole = own * self.cards if self.cards > 1 or self.waits_on_host else 0  # one GPU's part is the whole
        held = parameter.held_by_graph and not (self.job.reentrant and self.job.checkpointing == "full")
        stays = count <= threshold
        viewed, trains = parameter.viewed, parameter.trains
        return PartitionedWeight(
            number, parameter.name, count, whole, own, count * size, stays, viewed, trains, dtype, held
        )

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load parts of the weights; a quantized model is loaded whole, and sharded by the engine."""
        if self.job.engine_casts:
            super().load()
        else:
            self._divide()

    def _divide(self) -> None:
        """A part of every frozen weight; those that train are one flat tensor, made later.

        ``zero.Init`` makes each module's weights whole, and divides them before it makes the next module
        (partition_parameters.py): parts of the layers lie in the memory of the whole embedding.
        """
        record, offloads = self.record, self.waits_on_host
        for one, weight in zip(self.own_weights(), self.weights, strict=True):
            loaded = self.loaded.get((one.layer, one.parameter.name), [])
            if not one.parameter.trains and not offloads:
                label = f"{'layers.*.' if one.layer is not None else ''}{weight.label}"
                whole = []
                if not loaded:
                    whole = [record.allocate(Storage(weight.whole_bytes, "parameter", f"{label}, whole"))]
                record.allocate(Storage(weight.own_bytes, "parameter", label, "own part"))
                record.free_all(whole)
            record.free_all(loaded[:1])  # scales stay

    def prepare(self) -> None:
        """Allocate the own part of trainable weights, its fp32 copy, its gradients, the bucket (``__init__``)."""
        record, dtype = self.record, self.dtype
        if self.job.engine_casts:
            self.cast()
            self._divide()
        own = sum(self.parts)
        stored = dtype if self.job.engine_casts or self.job.method == "full" else self.job.lora_dtype
        if self.job.offload != "all":
            record.empty_cache()  # zero/utils.py: defragment
            record.allocate(flat(own, stored, "parameter", "own part of the weights that train"))
        if self.job.offload == "none":
            for part in self.parts:
                record.allocate(flat(part, "fp32", "optimizer_state", "fp32 copy of the own part"))
            record.allocate(flat(own, dtype, "gradient", "gradients of the own part"))
        record.allocate(flat(self.bucket_size, dtype, "communication", "reduce bucket (reduce_bucket_size)"))

    @property
    def parts(self) -> list[int]:
        """Elements of each sub-group of a GPU's part."""
        found: list[int] = []
        group, size = -1, 0
        for one in self.trained.values():
            if one.group != group or size >= self.job.zero.sub_group_size:
                found.append(0)
                group, size = one.group, 0
            size += ceil_div(one.count, self.cards)
            found[-1] = size
        return found

    def gathered_bytes(self) -> int:
        return self.modules.gathered_bytes

    # -- a step --------------------------------------------------------------------------------------------------------

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        if piece.phase != self.phase:
            self._leave()
            self.phase = piece.phase
            self.begins = not piece.phase.startswith("backward")
            if self.modules.head and not self.begins:  # before the loss's own backward, which has no turn
                self._enter_around()
        super().run_section(piece, events, offset)

    def state(self) -> State | None:
        """Those of the coordinator; buckets are empty and no module runs between two micro-steps."""
        return None if self.filled or self.large or self.late or self.current else self.coordinator.state()

    def resume(self, state: State) -> None:
        self.coordinator.resume(state)

    def arrived(self, one: Trained, gradient: int) -> None:
        """Hold back gradients of a mixture that is one module to DeepSpeed until its backward ends."""
        if one.placed.layer in self.modules.leaves and one.placed.parameter.name.startswith(f"{MIXTURE}."):
            self.late.append((one, gradient))
            return
        self._take(one, gradient)

    def _take(self, one: Trained, gradient: int) -> None:
        # adapters stay fp32: their gradients are cast before they are sent
        if one.placed.parameter.dtype != self.dtype:
            self.passing(flat(one.count, self.dtype, "communication", "gradient, cast"))
        super().arrived(one, gradient)

    def stretch(self, piece: UnfoldedSection, events: Sequence[int], offset: int, first: int = 0) -> None:
        """Gather and release weights as modules run."""
        done = 0
        for number, turn in self.modules.turns(piece, events):
            if turn == self.running:
                continue
            if turn[2][1] == LOSS:  # the model's last module drops its weights before the loss takes memory
                super().stretch(piece, events[done:number], offset, done)
                done = number
                self._leave()
                continue
            if not self.begins and self.modules.runs_several and turn == self.first:
                super().stretch(piece, events[done:number], offset, done)
                done = number
                self._leave()
                self.begins = True
            if self.begins:
                self._begin(turn)
            super().stretch(piece, events[done:number], offset, done)
            done = number
            self._leave()
            if self.running_layer != turn[2][0]:
                self._end_layer()
            self.running, self.running_layer = turn, turn[2][0]
            if self.modules.head and not any(visit.lasts for visit in self.around):
                self._enter_around()
            while self.current is None or self.current.module is None:
                if self.current is not None and self.current.late:
                    self.around.append(self.current)
                elif self.current is not None:
                    self.coordinator.leave(self.current, recomputes=turn[1])
                self.current = self.coordinator.enter()
        super().stretch(piece, events[done:], offset, done)

    def _begin(self, turn: Turn) -> None:
        """Begin a forward."""
        self.begins, self.first = False, turn
        if not self.by_engine:
            self.coordinator.run_part(self.scores or 0)
            return
        if self.scores is not None:
            self.coordinator.restart(self.scores, builds_graph=False)
            return
        self.coordinator.restart(self.passes % self.forwards, builds_graph=turn[0].startswith("forward"))
        self.passes += 1

    @contextmanager
    def scoring(self, scored: Step, by_engine: bool = True) -> Iterator[None]:
        self.by_engine = by_engine
        if scored is self.step:  # a model that does nothing else
            yield
            self.by_engine = True
            return
        number = next((number for number, one in self.scored.items() if one.step is scored), None)
        if number is None:
            modules = Modules(scored, self.own_weights(), self.weights)
            number = self.coordinator.add_passes(modules.passes(self.is_reference))
            self.scored[number] = modules
        own, self.modules, self.scores = self.modules, self.scored[number], number
        with super().scoring(scored):
            yield
        self.modules, self.scores, self.by_engine = own, None, True

    def shares_come_back(self) -> None:
        self.coordinator.from_host = False

    def generation_ends(self) -> None:
        """Forget the order of the modules, whose hooks TRL takes off to generate (trl 1.16, models/utils.py)."""
        self.coordinator.forget()

    def _leave(self) -> None:
        if self.current is not None:
            recomputes = self.running is not None and self.running[1]
            saves = self._saves()
            if self.current.late:
                self.around.append(self.current)
            else:
                self.coordinator.leave(self.current, saves, recomputes)
            self.current = self.running = None
        for one, gradient in self.late:
            self._take(one, gradient)
        self.late.clear()

    def _saves(self) -> bool:
        """Whether the module that runs saves its weights for backward: in a forward, or when that is recomputed."""
        if self.running is None:
            return False
        return (
            not self.job.reentrant if self.running[1] else self.running[0].startswith("forward") and not self.recomputes
        )

    def forward_ends(self) -> None:
        self._leave()
        self._leave_around()
        self.phase = ""

    def _end_layer(self) -> None:
        """Release what reentrant checkpointing recomputed with, if something tells that the layer ends."""
        if self.coordinator.keeps_recomputed and not self.modules.runs_again:
            self.coordinator.release_recomputed()

    def _enter_around(self) -> None:
        """Run the modules up to the one that the head's weight is gathered for."""
        visit = None
        while visit is None or not visit.lasts:
            visit = self.coordinator.enter()
        self.around.append(visit)

    def _leave_around(self) -> None:
        while self.around:
            self.coordinator.leave(self.around.pop())

    def reduce(self, members: list[Trained]) -> None:
        """Reduce gradients in a joined copy, unless one divides evenly (reduce_scatter_coalesced).

        The own part of each that the host gets comes back for its norm, while the copy is there (partition_grads).
        """
        record = self.record
        own, joined = [ceil_div(one.count, self.cards) for one in members], list[int]()
        self.send("reduce_scatter", sum(own) * self.cards * DTYPE_BYTES[self.dtype], self.zero.overlap_comm)
        if len(members) > 1 or members[0].count % self.cards:
            stream = REDUCE if self.zero.overlap_comm else COMPUTE
            by_owner = flat(sum(own) * self.cards, self.dtype, "communication", "gradients, by owner", stream)
            joined.append(record.allocate(by_owner))
        if self.job.offload != "none":
            self._send_to_host(sum(own))
            for count in own:
                copy = record.allocate(
                    flat(count, self.dtype, "communication", "own part of a gradient, from the host")
                )
                if self.is_last:
                    self.to_host(count)
                record.free(copy)
        record.free_all(joined)

    def _send_to_host(self, count: int) -> None:
        """Add gradients to those on the host, by way of the GPU; the last micro-step's sum goes in fp32."""
        size, overlaps = count * DTYPE_BYTES[self.dtype], self.zero.overlap_comm
        self.send("to_host", size, overlaps)
        if self.job.gradient_accumulation_steps > 1:
            self.send("from_host", size, overlaps)
        if self.is_last:
            self.send("to_host", count * DTYPE_BYTES["fp32"], overlaps)

    def backward_ends(self) -> None:
        """Run the epilogue: the remaining visits, and a last reduction."""
        self._leave()
        while self.coordinator.visits_left:
            self.coordinator.leave(self.coordinator.enter())
        self.flush()
        self.coordinator.end_backward(self.around)
        self.around = []
        if not self.is_last:
            self.coordinator.drop_held()

    def drop_gradients(self, offset: int) -> None:
        # the last graph ends with the step
        self.coordinator.drop_held()

    def optimize(self, first: bool) -> None:
        """Update the own part, a sub-group at a time; then gather small weights again."""
        self.coordinator.release_all(self.weights)
        if self.job.method == "full":  # frozen weights stay
            self.coordinator.from_host = self.waits_on_host
        if self.job.offload != "none":
            self.sent.updated_on_host += sum(self.parts)
            if self.job.offload == "optimizer":
                self.send("from_host", sum(self.parts) * DTYPE_BYTES[self.dtype])
        else:
            for one in self.trained.values():
                self.norm(ceil_div(one.count, self.cards))
            for part in self.parts:
                joined = self.record.allocate(flat(part, self.dtype, "temporary", "gradients of a sub-group"))
                gradient = self.record.allocate(flat(part, "fp32", "gradient", "gradients of a sub-group in fp32"))
                self.record.free(joined)
                optimizer_of(self.job.optimizer).step(self.record, [Weight("own part", (part,), "fp32")], first)
                self.record.free(gradient)
        self.coordinator.gather_small(self.weights)
