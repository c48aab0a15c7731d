"""In which order DeepSpeed's ZeRO-3 sees the modules of a micro-step: a turn for each with weights, and those around.

DeepSpeed 0.19, runtime/zero/parameter_offload.py: each module's forward and backward ask for the module's own weights,
and for weights of others that its forward read (external parameters).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from vramplan.analytic.autograd.graph import SAVED
from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.layers.losses import FUSED
from vramplan.analytic.strategies.zero3_coordinator import PartitionedWeight, Visit
from vramplan.analytic.tasks.reference import is_of_reference
from vramplan.memory.optimizer_steps import is_embedding

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step

HEAD = "lm_head"
MIXTURE = "mlp"
"""What transformers calls a mixture of experts."""
LOSS = "loss"
"""What a loss makes its storages as: no module, and the one before it is over."""
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


def _is_of_adapter(part: tuple[PartitionedWeight, ...], number: int) -> bool:
    """Whether a part of an adapted layer is one of the adapter's matrices; the layer itself comes first."""
    return number > 0 and any(".lora_" in weight.label for weight in part)


class Modules:
    """The modules with weights of a model, and when their turns are."""

    def __init__(self, step: Step, placed: Sequence[Placed], weights: Sequence[PartitionedWeight]) -> None:
        self.step, self.job, self.weights = step, step.job, weights
        self.of: dict[Module, list[PartitionedWeight]] = {}
        """The weights of each module."""
        self.place: dict[Module, Module] = {}
        """The module of each weight or layer by its name."""
        self.first_modules = {
            (one.layer, one.parameter.name.rpartition(".")[0])
            for one in placed
            if one.layer is None and is_embedding(one.parameter.name)
        }
        """Those of tokens, whose input has no gradient that would tell when their backward is over."""
        architecture = step.setting.architecture
        mixtures = {one.layer for one in placed if one.parameter.name.startswith(f"{MIXTURE}.experts.")}
        self.leaves = mixtures if architecture.deepspeed_leaf or self.job.zero.leaf_mixtures else set()
        """Layers whose mixture is one module to DeepSpeed."""
        copied = {one.parameter.name.removesuffix(SAVED) for one in placed if SAVED in one.parameter.name}
        for one, weight in zip(placed, weights, strict=True):
            name = one.parameter.name
            own = module = name.rpartition(".lora_")[0] or name.removesuffix(SAVED).rpartition(".")[0]
            if one.layer in self.leaves and module.startswith(f"{MIXTURE}."):
                module = MIXTURE
            if name not in copied:  # the original of a module to save never runs
                self.of.setdefault((one.layer, module), []).append(weight)
            for place in (name, own):  # a gradient is called as its weight
                self.place[one.layer, place] = (one.layer, module)
        self.embedding = [
            weight
            for one, weight in zip(placed, weights, strict=True)
            if step.embedded is not None and one.parameter.name == step.embedded.name and one.layer is None
        ]
        if architecture.is_tied(step.setting.config):
            self.of[None, HEAD] = self.embedding
            self.place[None, HEAD] = (None, HEAD)
        self.head: tuple[PartitionedWeight, ...] = ()
        """What a fused loss reads of the head, whose own forward never runs.

        It is the whole model's then: gathered before the model's other modules, and until its forward or backward ends.
        """
        if self.job.loss in FUSED:
            self.head = tuple(self.of.pop((None, HEAD), ()))
            self.place = {name: module for name, module in self.place.items() if module != (None, HEAD)}
        self.runs_again = self.job.reference_source == "adapters_off" and self.job.task in ("dpo", "kto")
        """Whether the same model runs once more without gradients between forward and backward; GRPO scores before."""
        self.runs_several = self.job.task == "embedding" and not self.job.joins_texts
        """Whether a micro-step may have several forwards with gradients, and one backward through all of them."""
        self.known: dict[tuple[int, bool, bool], list[tuple[int, bool, str]]] = {}
        """Turns of the sections of each pattern."""

    @property
    def gathered_bytes(self) -> int:
        """An evaluation breaks the known order: small weights, and one module's at a time, in a copy where several."""
        small = sum(weight.gathered_bytes for weight in self.weights if weight.stays)
        head = sum(weight.gathered_bytes for weight in self.head if not weight.stays)
        large = (
            sum(weight.gathered_bytes for weight in weights if not weight.stays) * (1 + (len(weights) > 1))
            for weights in self.of.values()
        )
        return small + head + max(large, default=0)

    def turns(self, piece: UnfoldedSection, events: Sequence[int]) -> Iterator[tuple[int, Turn]]:
        """(event, turn) of each module with weights that begins to make storages; recomputing is a turn of its own."""
        turns = self.known.get(piece.pattern)
        if turns is None:
            turns = self.known[piece.pattern] = list(self._turns(piece, events))
            if not self.job.reentrant:
                self._join_recomputed(turns, piece.layer)
        for number, recomputes, module in turns:
            yield number, (piece.phase, recomputes, (piece.layer, module))

    def _join_recomputed(self, turns: list[tuple[int, bool, str]], layer: int | None) -> None:
        """Make one turn of a module's that ends a recomputation, and of the backward that asked for it.

        That begins before, and gathers the weights. Where an adapter's matrix asked, the layer under it has two.
        """
        for number, ((event, recomputes, module), (_, again, following)) in enumerate(pairwise(turns)):
            adapted = any(".lora_" in weight.label for weight in self.of.get((layer, module), ()))
            if recomputes and not again and module == following and not adapted:
                turns[number : number + 2] = [(event, False, module)]
                return

    def _turns(self, piece: UnfoldedSection, events: Sequence[int]) -> Iterator[tuple[int, bool, str]]:
        """(event, whether it recomputes, name of the module), the same for all layers that the simulated one is for."""
        storages, source = self.step.record.storages, self.step.unfolded.source
        backward = piece.phase.startswith("backward")
        before = None
        for number, event in enumerate(events):
            if event >= 0:
                info = storages[source[event]]
                if info.module == LOSS and before is not None and not backward:
                    yield number, False, LOSS
                    before = None
                module = self.place.get((piece.layer, info.module))
                if module is not None and info.category != "workspace":
                    turn = backward and info.category == "activation", module[1]
                    if turn != before:
                        yield number, *turn
                        before = turn

    def passes(self, of_reference: bool = False) -> list[list[Visit]]:
        """The visits of each forward of the first micro-step, with modules around, whose turn asks for weights as well.

        The backward goes with the last one. `of_reference`: of the second model that gives the reference.
        """
        found: list[list[Visit]] = []
        running: Turn | None = None
        first: Turn | None = None
        phase, late = "", False
        for piece, following in pairwise(self.step.unfolded.pieces):
            if not piece.phase.endswith(".0"):
                break
            if piece.phase != phase:
                phase, begins, late, first = piece.phase, True, False, None
            if self.job.loads_reference and is_of_reference(phase) != of_reference:
                continue
            for _, turn in self.turns(piece, self.step.unfolded.events[piece.first_event : following.first_event]):
                if turn[2][1] == LOSS or (turn == running and not begins):
                    continue
                if self.runs_several and turn == first:  # the next forward, or its backward
                    begins, late = True, phase.startswith("backward")
                    if late:
                        found[-1] += [Visit(None, (weight,), late=True) for weight in self._hooked()]
                if begins and not phase.startswith("backward"):
                    found.append([])
                    running = None
                found[-1] += self._visits(running, turn, begins, late)
                running, begins, first = turn, False, first or turn
        if found and phase.startswith("backward"):
            found[-1] += [Visit(None, (weight,)) for weight in self._hooked()]
        return found

    def _visits(self, before: Turn | None, turn: Turn, begins: bool, ran_since: bool) -> list[Visit]:
        """The visits of a turn after another, or at the beginning of a forward or backward.

        `ran_since`: the model ran once more since the forward whose backward it is.
        """
        *others, last = self._parts(turn)
        late = self._is_late(turn, ran_since)
        entered = _entered(before, turn)
        found = [Visit(None, ())] * (self._others(before, turn, begins) + entered)
        if begins and self.head:  # the innermost but for what _entered counts is the causal language model
            found[len(found) - entered] = Visit(None, self.head, lasts=True)
        backward = turn[0].startswith("backward") and not turn[1]
        found += [
            Visit(None, part, late=late and not adapter, recomputes=backward and adapter)
            for part, adapter in ((part, _is_of_adapter(part, number)) for number, part in enumerate(others))
        ]
        found.append(Visit(turn[2], last, late=late and not _is_of_adapter(last, len(others))))
        return found

    def _is_late(self, turn: Turn, ran_since: bool) -> bool:
        """Whether a module counts no gradients that its backward waits for: it ran once more since.

        That is where its adapters were off, or for other texts, unless it was recomputed (parameter_offload.py:
        ds_grads_remaining).
        """
        if not turn[0].startswith("backward") or turn[1]:
            return False
        if turn[2] in self.first_modules:
            return True
        if not (self.runs_again or ran_since):
            return False
        return turn[2][0] is None or self.job.checkpointing != "full"

    def _others(self, before: Turn | None, turn: Turn, begins: bool) -> int:
        """Modules without weights at a forward's beginning: PEFT's two; the rotary embedding before the layers.

        sentence-transformers' two are as many as a causal language model's, and it adds adapters without PEFT's.
        """
        if begins:
            return 0 if self.job.method == "full" or self.runs_several else 2
        if before is None or before[2][0] is not None or turn[2][0] != 0 or turn[0].startswith("backward"):
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
        weights = self.of[turn[2]]
        if turn[2][0] in self.leaves and turn[2][1] == MIXTURE:
            return [tuple(weights)]
        adapters = [(weight,) for weight in weights if ".lora_" in weight.label]
        own = tuple(weight for weight in weights if ".lora_" not in weight.label)
        if not adapters:
            return [own]
        outer = tuple(weight for weight in weights if ".lora_A." in weight.label)
        if is_of_reference(turn[0]):  # adapters are off
            return [outer, own]
        if not turn[0].startswith("backward") or turn[1]:
            return [outer, own, (), *adapters]
        return [outer, *reversed(adapters), *([] if turn[2] in self.step.record.idle else [own])]
