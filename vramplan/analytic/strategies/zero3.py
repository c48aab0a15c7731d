"""DeepSpeed's ZeRO 3 as transformers and accelerate set it up: weights, gradients and states are sharded.

Mirrors deepspeed 0.19's runtime/zero/stage3.py and partition_parameters.py. Of a weight's n elements, whatever its
shape, every GPU has ceil(n / GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from vramplan.analytic.autograd.graph import SAVED
from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.fsdp import REDUCE
from vramplan.analytic.strategies.micro_steps import State
from vramplan.analytic.strategies.stored_weights import divided
from vramplan.analytic.strategies.zero3_coordinator import Coordinator, PartitionedWeight, Visit
from vramplan.analytic.strategies.zero12 import Trained, ZeroStage, flat
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step

MIXTURE = "mlp"
"""What transformers calls a mixture of experts."""
Module = tuple[int | None, str]
Turn = tuple[str, bool, Module]
"""Phase, whether checkpointing runs it again, and the module."""
AROUND_ACTIVATION = (
    {"gate_proj", "up_proj"},
    {"gate_up_proj", "down_proj"},
    {"fc1", "fc2"},
    {"c_fc", "c_proj"},
    {"dense_h_to_4h", "dense_4h_to_h"},
)
"""Layers between which transformers' MLPs call the activation, a module without weights."""


def _entered(before: Turn | None, turn: Turn) -> int:
    """Modules around the next one that were not around the one before, the layer, its attention, and an activation."""
    around = [str(turn[2][0]), *turn[2][1].split(".")[:-1]]
    if before is None or before[:2] != turn[:2]:
        return len(around)
    last = [str(before[2][0]), *before[2][1].split(".")[:-1]]
    shared = next(
        (n for n, (a, b) in enumerate(zip(last, around, strict=False)) if a != b), min(len(last), len(around))
    )
    between = {before[2][1].rpartition(".")[2], turn[2][1].rpartition(".")[2]}
    return len(around) - shared + (between in AROUND_ACTIVATION)


class ZeroStage3(ZeroStage):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.weights: list[PartitionedWeight] = []
        self.modules: dict[Module, list[PartitionedWeight]] = {}
        self.module_of: dict[Module, Module] = {}
        mixtures = {one.layer for one in step.placed if one.parameter.name.startswith(f"{MIXTURE}.experts.")}
        self.leaves = mixtures if step.setting.architecture.deepspeed_leaf or self.zero.leaf_mixtures else set()
        """Layers whose mixture is one module to DeepSpeed."""
        self.late: list[tuple[Trained, int]] = []
        """Gradients of such a module, which are taken when its backward is over."""
        copied = {one.parameter.name.removesuffix(SAVED) for one in step.placed if SAVED in one.parameter.name}
        for number, one in enumerate(step.placed):
            name = one.parameter.name
            own = module = name.rpartition(".lora_")[0] or name.removesuffix(SAVED).rpartition(".")[0]
            if one.layer in self.leaves and module.startswith(f"{MIXTURE}."):
                module = MIXTURE
            weight = self._divided(number, one)
            self.weights.append(weight)
            if name not in copied:  # the original of a module to save never runs
                self.modules.setdefault((one.layer, module), []).append(weight)
            for place in (name, own):  # a gradient is called as its weight
                self.module_of[one.layer, place] = (one.layer, module)
        pairs = zip(step.placed, self.weights, strict=True)
        self.embedding = [weight for one, weight in pairs if one.parameter is step.embedded]
        if step.setting.architecture.is_tied(step.setting.config):
            self.modules[None, "lm_head"] = self.embedding
            self.module_of[None, "lm_head"] = (None, "lm_head")
        self.turns: dict[tuple[int, bool, bool], list[tuple[int, bool, str]]] = {}
        """Turns of the sections of each pattern."""
        self.visits = self._visits()
        self.coordinator = Coordinator(record, self.visits, self.zero, self.job.offload == "all", self.send)
        self.recomputes = self.job.checkpointing == "full"
        self.current: Visit | None = None
        self.running: Turn | None = None

    def _divided(self, number: int, one: Placed) -> PartitionedWeight:
        parameter = one.parameter
        weight = divided(parameter, self.job)
        dtype = parameter.dtype if parameter.quantize == "none" else weight.dtype
        count, size = weight.num_elements, DTYPE_BYTES[dtype]
        threshold = self.zero.param_persistence_threshold or 0
        own = ceil_div(count, self.cards) * size
        whole = own * self.cards if self.cards > 1 or self.job.offload == "all" else 0  # one GPU's part is the whole
        held = parameter.held_by_graph and not (self.job.reentrant and self.job.checkpointing == "full")
        stays = count <= threshold
        viewed, trains = parameter.viewed, parameter.trains
        return PartitionedWeight(
            number, parameter.name, count, whole, own, count * size, stays, viewed, trains, dtype, held
        )

    # -- whose turn it is ----------------------------------------------------------------------------------------------

    def _turns(self, piece: UnfoldedSection, events: Sequence[int]) -> Iterator[tuple[int, Turn]]:
        """(event, turn) of each module with weights that begins to make storages; recomputing is a turn of its own."""
        turns = self.turns.get(piece.pattern)
        if turns is None:
            turns = self.turns[piece.pattern] = list(self._turns_of(piece, events))
        for number, recomputes, module in turns:
            yield number, (piece.phase, recomputes, (piece.layer, module))

    def _turns_of(self, piece: UnfoldedSection, events: Sequence[int]) -> Iterator[tuple[int, bool, str]]:
        """(event, whether it recomputes, name of the module), the same for all layers that the simulated one is for."""
        storages, source = self.step.record.storages, self.step.unfolded.source
        backward = piece.phase.startswith("backward")
        before = None
        for number, event in enumerate(events):
            if event >= 0:
                info = storages[source[event]]
                module = self.module_of.get((piece.layer, info.module))
                if module is not None and info.category != "workspace":
                    turn = backward and info.category == "activation", module[1]
                    if turn != before:
                        yield number, *turn
                        before = turn

    def _visits(self) -> list[Visit]:
        """Those of the first micro-step, with the modules around them, whose turn asks for weights to come as well."""
        found: list[Visit] = []
        running: Turn | None = None
        for piece, following in pairwise(self.step.unfolded.pieces):
            if not piece.phase.endswith(".0"):
                break
            for _, turn in self._turns(piece, self.step.unfolded.events[piece.first_event : following.first_event]):
                if turn != running:
                    *others, last = self._parts(turn)
                    found += [Visit(None, ())] * (_entered(running, turn) + self._others(running, turn))
                    found += [Visit(None, part) for part in others]
                    found.append(Visit(turn[2], last))
                    running = turn
        return found + [Visit(None, (weight,)) for weight in self._hooked()]

    def _others(self, before: Turn | None, turn: Turn) -> int:
        """Modules without weights at a forward's beginning: PEFT's two, and the rotary embedding before the layers."""
        if before is None:
            return 0 if self.job.method == "full" else 2
        if before[2][0] is not None or turn[2][0] != 0 or not turn[0].startswith("forward"):
            return 0
        decoder, config = self.step.setting.architecture.decoder, self.step.setting.config
        return int(decoder is not None and decoder.rotary(config) is not None)

    def _hooked(self) -> list[PartitionedWeight]:
        """Frozen weights behind which transformers' hook makes a gradient begin: their modules are fetched once more.

        The patches' weight is read for its dtype before the convolution runs, which makes it the outer module's as well
        (an external parameter).
        """
        step, found = self.step, []
        if self.job.checkpointing != "full":
            return []
        if (
            step.setting.vision is not None
            and step.setting.has_images
            and step.setting.vision.tower.hooked != "nothing"
        ):
            pairs = zip(step.placed, self.weights, strict=True)
            found = [weight for one, weight in pairs if len(one.parameter.shape) > 3 and not one.parameter.trains]
        return found + (self.embedding if self.job.method != "full" else [])

    def _parts(self, turn: Turn) -> list[tuple[PartitionedWeight, ...]]:
        """Modules of their own: PEFT's layer around the layer itself, the dropout, the two matrices.

        PEFT's layer reads the first matrix's dtype, which makes it the outer layer's as well (an external parameter).
        """
        weights = self.modules[turn[2]]
        if turn[2][0] in self.leaves and turn[2][1] == MIXTURE:
            return [tuple(weights)]
        adapters = [(weight,) for weight in weights if ".lora_" in weight.label]
        own = tuple(weight for weight in weights if ".lora_" not in weight.label)
        if not adapters:
            return [own]
        outer = tuple(weight for weight in weights if ".lora_A." in weight.label)
        if not turn[0].startswith("backward") or turn[1]:
            return [outer, own, (), *adapters]
        return [outer, *reversed(adapters), *([] if turn[2] in self.step.record.idle else [own])]

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
        (partition_parameters.py): parts of the layers lie in the memory of the whole embedding. The whole head's memory
        goes back to the GPU in ``empty_cache`` (zero/utils.py: defragment).
        """
        record, offloads = self.record, self.job.offload == "all"
        pairs = list(zip(self.step.placed, self.weights, strict=True))
        last = max(
            (n for n, (one, _) in enumerate(pairs) if one.layer is not None and not one.parameter.trains), default=0
        )
        for number, (one, weight) in enumerate(pairs):
            loaded = self.loaded.get((one.layer, one.parameter.name), [])
            if not one.parameter.trains and not offloads:
                label = f"{'layers.*.' if one.layer is not None else ''}{weight.label}"
                whole = []
                if not loaded and number <= last:
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
        """An evaluation breaks the known order: small weights, and one module's at a time, in a copy where several."""
        small = sum(weight.gathered_bytes for weight in self.weights if weight.stays)
        large = (
            sum(weight.gathered_bytes for weight in weights if not weight.stays) * (1 + (len(weights) > 1))
            for weights in self.modules.values()
        )
        return small + max(large, default=0)

    # -- a step --------------------------------------------------------------------------------------------------------

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        if piece.phase != self.phase:
            self._leave()
            if piece.phase.startswith("forward"):
                self.coordinator.restart()
        super().run_section(piece, events, offset)

    def state(self) -> State | None:
        """Those of the coordinator; buckets are empty and no module runs between two micro-steps."""
        return None if self.filled or self.large or self.late or self.current else self.coordinator.state()

    def resume(self, state: State) -> None:
        self.coordinator.resume(state)

    def arrived(self, one: Trained, gradient: int) -> None:
        """Hold back gradients of a mixture that is one module to DeepSpeed until its backward ends."""
        if one.placed.layer in self.leaves and one.placed.parameter.name.startswith(f"{MIXTURE}."):
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
        for number, turn in self._turns(piece, events):
            if turn == self.running:
                continue
            super().stretch(piece, events[done:number], offset, done)
            done = number
            self._leave()
            self.running = turn
            while self.current is None or self.current.module is None:
                if self.current is not None:
                    self.coordinator.leave(self.current, recomputes=turn[1])
                self.current = self.visits[self.coordinator.step]
                self.coordinator.enter()
        super().stretch(piece, events[done:], offset, done)

    def _leave(self) -> None:
        if self.current is not None:
            saves = self.running is not None and self.running[0].startswith("forward") and not self.recomputes
            self.coordinator.leave(self.current, saves, self.running is not None and self.running[1])
            self.current = self.running = None
        for one, gradient in self.late:
            self._take(one, gradient)
        self.late.clear()

    def reduce(self, members: list[Trained]) -> None:
        """Reduce gradients in a joined copy, unless one divides evenly (reduce_scatter_coalesced)."""
        own = [ceil_div(one.count, self.cards) for one in members]
        self.send("reduce_scatter", sum(own) * self.cards * DTYPE_BYTES[self.dtype], self.zero.overlap_comm)
        if len(members) > 1 or members[0].count % self.cards:
            copy = flat(sum(own) * self.cards, self.dtype, "communication", "gradients, by owner")
            self.passing(Storage(copy.num_bytes, copy.category, copy.label, copy.formula, stream=REDUCE))
        if self.job.offload != "none":
            self._send_to_host(sum(own))
            for count in own:
                self.to_host(count)

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
        for visit in self.visits[self.coordinator.step :]:
            self.coordinator.enter()
            self.coordinator.leave(visit)
        self.flush()
        if not self.is_last:
            self.coordinator.drop_held()

    def drop_gradients(self, offset: int) -> None:
        # the last graph ends with the step
        self.coordinator.drop_held()

    def optimize(self, first: bool) -> None:
        """Update the own part, a sub-group at a time; then gather small weights again."""
        self.coordinator.release_all()
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
