"""torch's ``fully_shard`` (FSDP2) as accelerate 1.15 sets it up: each GPU keeps some rows of every weight.

The weights of a group (a layer; the embedding; the final norm and the head) are gathered when they are needed, and
their gradients are reduced when these are there (torch 2.13, distributed/fsdp/_fully_shard: _fsdp_param_group.py,
_fsdp_collectives.py). Memory allocated on communication streams does not serve the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from vramplan.analytic.architectures.vision_tower import TOWER
from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.layers.chunked_head import SCORED
from vramplan.analytic.strategies.fsdp import COMPUTE, GATHER, REDUCE, Sharded, gathered_dtype, stored
from vramplan.inputs.task_rules import LOSS_OUTSIDE
from vramplan.inputs.tasks import has_language_head
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div

if TYPE_CHECKING:
    from vramplan.analytic.step_record import RecordedWeight
    from vramplan.analytic.unfolded_step import Placed, Step
    from vramplan.inputs.job import Job


def is_ignored(parameter: RecordedWeight, job: Job) -> bool:
    """Whether accelerate leaves it out: four bits in whole numbers (utils/fsdp_utils.py: fsdp2_prepare_model)."""
    return parameter.quantize != "none" and job.quant_storage == "uint8"


class Group:
    """Weights that are gathered and reduced together."""

    def __init__(
        self,
        name: str,
        members: list[Placed],
        shares: list[Weight],
        cards: int,
        keeps: bool,
        reduce_dtype: str | None = None,
    ) -> None:
        self.name, self.keeps = name, keeps
        """How it is called, and whether it stays gathered between its forward and its backward."""
        self.members, self.shares = members, shares
        parts = [(share, one.parameter) for one, share in zip(members, shares, strict=True)]
        dtypes = [gathered_dtype(parameter, share) for share, parameter in parts]
        used = [share.num_elements * DTYPE_BYTES[dtype] for (share, _), dtype in zip(parts, dtypes, strict=True)]
        cast = sum(size for size, (share, _), dtype in zip(used, parts, dtypes, strict=True) if share.dtype != dtype)
        trained = [(share, dtype) for (share, p), dtype in zip(parts, dtypes, strict=True) if p.trains]
        gradients = sum(share.num_elements * DTYPE_BYTES[reduce_dtype or dtype] for share, dtype in trained)
        stored = sum(share.num_bytes for share, _ in trained)
        self.cast = _buffer(cast, f"{name}: own rows, cast", GATHER)
        self.copied = _buffer(sum(used), f"{name}: own rows from the host", GATHER)
        before = [share.num_bytes for (share, _), dtype in zip(parts, dtypes, strict=True) if share.dtype != dtype]
        self.largest = _buffer(max(before, default=0), f"{name}: own rows from the host, to be cast", GATHER)
        self.packet = _buffer(cards * sum(used), f"{name}: all rows, as received", GATHER)
        self.weights = [
            Storage(cards * size, "communication", f"{name}: gathered weights", "all rows") for size in used
        ]
        self.to_reduce = _buffer(cards * gradients, f"{name}: gradients to reduce", COMPUTE)
        self.reduced = _buffer(gradients, f"{name}: reduced gradients", REDUCE)
        self.gradient = Storage(stored, "gradient", f"{name} gradients", "own rows", stream=REDUCE)


def _before_layers(step: Step) -> set[UnfoldedSection]:
    """Sections of a step whose next one is a layer."""
    return {one for one, after in pairwise(step.unfolded.pieces) if one.layer is None and after.layer is not None}


def _full_tensor(share: Weight, cards: int) -> Storage:
    """``DTensor.full_tensor()`` of a weight, in the dtype that it is stored in (trl 1.16, trainer/utils.py)."""
    return Storage(cards * share.num_bytes, "communication", f"{share.name}: full tensor", f"{share.dtype}, all rows")


def _buffer(num_bytes: int, label: str, stream: int) -> Storage:
    return Storage(num_bytes, "communication", label, "", stream=stream)


class Fsdp2(Sharded):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        placed = self.own_weights()
        self.ignored = [one for one in placed if is_ignored(one.parameter, self.job)]
        """Weights that stay whole on every GPU."""
        self.wraps_embeddings = (
            self.job.fsdp.wraps_embeddings and self.job.loss != "value_head" and self.job.task != "reranker"
        )
        """Whether embedding and head have groups of their own: accelerate asks the model for them; TRL's module with
        a value head (0.24) and sentence-transformers' CrossEncoder (6.2) do not say."""
        self.divided = [one for one in placed if not is_ignored(one.parameter, self.job)]
        self.shares = [self._share(one) for one in self.divided]
        self.before, self.layers, self.behind = self.groups_of_weights()
        self.reads_head = self.job.loss == "chunked"
        """Whether the loss multiplies by the head's weight, and the head itself does not run."""
        self.full_head: list[Storage] = []
        """The head's tensors as a loss gathers them, if nothing else does: it is in a group of its own."""
        if self.job.reads_sharded_head and self.behind:
            self.full_head = [_full_tensor(share, self.job.num_gpus) for share in self.behind[0].shares]
            self.behind = []
        ran = [group for layer, group in self.layers.items() if layer < TOWER or step.setting.has_images]
        self.order = [*self.before, *ran, *self.behind]
        self.weights: dict[Group, list[int]] = {}
        """Gathered weights of each group."""
        self.packets: dict[Group, int] = {}
        """Received weights that are not copied out yet."""
        self.held: int | None = None
        """The packet of the group before, freed when the next is copied out."""
        self.reducing: int | None = None
        """Gradients that are being reduced."""
        self.finished: set[Group] = set()
        """Groups whose backward is over."""
        self.whole_head: list[int] = []
        """Those of them that exist."""
        self.first = _before_layers(step)
        """Sections before a layer: what follows another forward has none."""
        self.inside = False
        """Whether the phase has reached the layers."""
        self.embedding_needs_grad = self.job.checkpointing == "full" or any(
            one.parameter.trains for one in self.before[-1].members
        )

    def _share(self, one: Placed) -> Weight:
        """Rows of the first dimension, equally many on every GPU, padding included."""
        weight = stored(one.parameter, self.job)
        rows, *others = weight.shape
        return replace(weight, shape=(ceil_div(rows, self.job.num_gpus), *others))

    def groups_of_weights(self) -> tuple[list[Group], dict[int, Group], list[Group]]:
        """(groups before the layers, the layers, groups after them) (accelerate, fsdp_utils.py).

        The last group stays gathered, and so does the root, which has whatever no other group has.
        """
        tied = has_language_head(self.job) and self.step.setting.architecture.is_tied(self.step.setting.config)
        by_place: dict[int | str, list[tuple[Placed, Weight]]] = {}
        for one, share in zip(self.divided, self.shares, strict=True):
            place = self._place(share.name, tied) if one.layer is None else one.layer
            by_place.setdefault(place, []).append((one, share))
        if tied and "before" in by_place:  # accelerate names the final norm first
            by_place["before"].sort(key=lambda pair: pair[0].parameter is self.step.embedded)
        cards, names = self.job.num_gpus, {"before": "embedding", "behind": "norm and head", "root": "root"}

        def group(place: int | str, keeps: bool) -> Group:
            members = [one for one, _ in by_place[place]]
            name = names[place] if isinstance(place, str) else "layers.*"
            return Group(name, members, [share for _, share in by_place[place]], cards, keeps)

        keeps = not self.job.fsdp.reshard_after_forward
        layers = {place: group(place, keeps) for place in by_place if isinstance(place, int)}
        root = [group("root", True)] if "root" in by_place else []
        behind = [group("behind", True)] if "behind" in by_place else []
        before = [group("before", tied or keeps)] if "before" in by_place else []
        return [*root, *before], layers, behind

    def _place(self, name: str, tied: bool) -> str:
        """The group of a weight outside of the layers: the embedding's, the head's, or the root.

        The final norm goes with the head if accelerate finds it: right below the base model, and not below PEFT's.
        """
        if not self.wraps_embeddings:
            return "root"
        setting, embedded = self.step.setting, self.step.embedded
        assert setting.architecture.decoder is not None
        norm = setting.architecture.decoder.norm_name
        is_norm = setting.vision is None and norm.count(".") == 1 and name.startswith(norm)
        if (is_norm and self.job.method == "full") or name.startswith("lm_head"):
            return "before" if tied else "behind"
        assert embedded is not None
        return "before" if name.startswith(embedded.name) else "root"

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the own rows of every weight."""
        super().load()
        for share, one in zip(self.shares, self.divided, strict=True):
            label = f"{'layers.*.' if one.layer is not None else ''}{share.name}"
            formula = f"{' x '.join(map(str, share.shape))} {share.dtype}, own rows"
            number = self.record.allocate(Storage(share.num_bytes, "parameter", label, formula))
            if self.offloads:
                self.record.free(number)
            else:
                self.own_parts["weights"].append(number)
        self.leave(self.divided)  # until then a state dict has them (utils/fsdp_utils.py: fsdp2_prepare_model)
        for one in self.ignored:
            for storage in one.storages() if one not in self.loaded else ():
                self.record.allocate(storage)

    def gathered_bytes(self) -> int:
        kept = sum(group.packet.num_bytes for group in self.order if group.keeps)
        return kept + self.passing_bytes()

    def passing_bytes(self) -> int:
        """Bytes of the largest group that does not stay, with its packet and the one before's."""
        return 3 * max((group.packet.num_bytes for group in self.order if not group.keeps), default=0)

    # -- a step --------------------------------------------------------------------------------------------------------

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """Gather before, drop or reduce after."""
        if piece.phase != self.phase:
            self.phase, self.inside = piece.phase, False
            self._free_held()
        if piece.layer is not None:
            self.inside, groups = True, [self.layers[piece.layer]]
        elif not self.inside:
            groups = self.before if piece in self.first else []
        else:
            groups = self.behind if piece in self.step.unfolded.ends else []
            if self.full_head and not piece.phase.startswith("backward") and self._has_head(events):
                self._run_full_head(events, offset)
                return
        if piece.phase.startswith("backward"):
            self._backward(piece, groups, events, offset)
        else:
            self._forward(groups, events, offset)

    @contextmanager
    def scoring(self, scored: Step, by_engine: bool = True) -> Iterator[None]:
        first, self.first = self.first, _before_layers(scored)
        with super().scoring(scored, by_engine):
            yield
        self.first = first

    def generation_begins(self) -> None:
        """Gather what the first forward of ``generate`` does, of which the groups that stay serve training too."""
        self.phase = "forward.0"
        first = next(group for layer, group in self.layers.items() if layer < TOWER)
        for groups in (self.before, [first]):
            self._forward(groups, (), 0)
        self._free_held()
        self.phase = ""

    def forward_ends(self) -> None:
        self._free_held()

    def _forward(self, groups: list[Group], events: Sequence[int], offset: int) -> None:
        for group in groups:
            self._enter(group)
        over = self._model_ends(events)
        self.record.extend(events[:over], offset)
        if over < len(events):  # the root frees the last packet (_fsdp_state.py: _post_forward)
            self._free_held()
        self.record.extend(events[over:], offset)
        for group in groups:
            if not group.keeps:
                self._drop(group)

    def _enter(self, group: Group) -> None:
        """Gather the group's weights for its forward."""
        if group not in self.weights:
            self._request(group)
            packet = self._receive(group)
            self._free_held()
            self.held = packet

    def _model_ends(self, events: Sequence[int]) -> int:
        """Index of the first event behind the model's forward: of a loss that is not part of it."""
        if self.job.task not in LOSS_OUTSIDE or self.job.loss == "value_head" or not self.inside:
            return len(events)
        storages, source = self.step.record.storages, self.step.unfolded.source
        losses = (n for n, e in enumerate(events) if e >= 0 and storages[source[e]].module == "loss")
        return next(losses, len(events))

    def _has_head(self, events: Sequence[int]) -> bool:
        storages, source = self.step.record.storages, self.step.unfolded.source
        return any(e >= 0 and storages[source[e]].what == SCORED for e in events)

    def _run_full_head(self, events: Sequence[int], offset: int) -> None:
        """Gather the head by itself; autograd keeps the tensor for backward."""
        head = self.step.head_begins(events)
        self.record.extend(events[:head], offset)
        self.send("all_gather", sum(storage.num_bytes for storage in self.full_head))
        whole = [self.record.allocate(storage) for storage in self.full_head]
        self.record.extend(events[head:], offset)
        if self.phase.startswith("forward"):
            self.whole_head = whole
        else:
            self.record.free_all(whole)

    def _request(self, group: Group) -> None:
        """All-gather a group, unless it is gathered or requested."""
        if group in self.weights or group in self.packets:
            return
        self.send("all_gather", group.packet.num_bytes, hidden=True)
        if self.offloads:
            self.send("from_host", group.copied.num_bytes, hidden=True)
        cast = self._own_rows(group)
        self.packets[group] = self.record.allocate(group.packet)
        if cast is not None:
            self.record.free(cast)

    def _own_rows(self, group: Group) -> int | None:
        """The copy of the own rows that is gathered, if it is not the rows themselves: from the host, or cast.

        Rows on the host are copied and cast one after another (_fsdp_param.py: all_gather_inputs).
        """
        if not self.offloads:
            return self.record.allocate(group.cast) if group.cast.num_bytes else None
        copied = self.record.allocate(group.copied)
        self.record.free(self.record.allocate(group.largest))
        return copied

    def _receive(self, group: Group) -> int:
        """Copy the weights out of the packet; the packet's number."""
        self.weights[group] = [self.record.allocate(storage) for storage in group.weights]
        return self.packets.pop(group)

    def _free_held(self) -> None:
        if self.held is not None:
            self.record.free(self.held)
            self.held = None

    def _drop(self, group: Group) -> None:
        self.record.free_all(self.weights.pop(group, ()))

    def _backward(self, piece: UnfoldedSection, groups: list[Group], events: Sequence[int], offset: int) -> None:
        """Backward in the opposite order; groups outside the layers come first and last."""
        record = self.record
        if piece.layer is not None:
            self._prepare_backward(groups[0])
            record.extend(events, offset)
            # without a gradient of its input nothing tells when a layer's backward is over
            if piece.layer not in self.step.record.layers_without_input_grad:
                self._finish_backward(groups[0], offset)
        elif not self.inside and self.reads_head:  # the model's output has the gradient that the head's would have
            if self.behind:
                self._prepare_backward(self.behind[-1])
            else:
                self._request(self.order[-1])
            dropped = self.step.head_drops(events)
            record.extend(events[:dropped], offset)
            record.free_all(self.whole_head)
            self.whole_head = []
            record.extend(events[dropped:], offset)
            for group in self.behind:
                self._finish_backward(group, offset)
        elif not self.inside and not self.wraps_embeddings:  # the root is there, and asks for the last layer at once
            self._request(self.order[-1])
            record.extend(events, offset)
        elif not self.inside:  # the loss has its gradient before the head asks for weights
            head = self.step.head_begins(events)
            record.extend(events[:head], offset)
            if self.behind:
                self._prepare_backward(self.behind[-1])
            else:  # the head is the embedding
                self._request(self.order[-1])
            record.extend(events[head:], offset)
            for group in self.behind:
                self._finish_backward(group, offset)
        elif piece not in self.step.unfolded.ends:
            record.extend(events, offset)
        else:
            if self.embedding_needs_grad:
                self._prepare_backward(self.before[-1])
            record.extend(events, offset)
            self._end_backward(offset)

    def _end_backward(self, offset: int) -> None:
        """End a backward: groups without a hook call, unused packets, gradients that are being reduced.

        In the order of the modules: the root, a tower's layers, the embedding, the language model's.
        """
        tower = [group for layer, group in self.layers.items() if layer >= TOWER]
        text = [group for layer, group in self.layers.items() if layer < TOWER]
        for group in [*self.before[:-1], *tower, self.before[-1], *text, *self.behind]:
            if group not in self.finished:
                self._finish_backward(group, offset)
            if group in self.packets:  # asked for and never used
                self.record.free(self.packets.pop(group))
        self.finished.clear()
        self._arrived()

    def _prepare_backward(self, group: Group) -> None:
        """Gather the group's weights, and request those of the next group."""
        if group not in self.weights:
            self._request(group)
            self.record.free(self._receive(group))
        place = self.order.index(group)
        if place:
            self._request(self.order[place - 1])
        elif (
            self.behind and self.job.task == "kto"
        ):  # the last group of the forward before, which was without gradients
            self._request(self.behind[-1])

    def _finish_backward(self, group: Group, offset: int) -> None:
        """Drop the group's weights, and in an optimizer step's last micro-step reduce its gradients.

        Until then gradients stay whole (accelerate: set_requires_gradient_sync).
        """
        record = self.record
        self.finished.add(group)
        self._drop(group)
        if not self.is_last:
            return
        self._arrived()
        gradients = self.step.gradients_of(group.members)
        if not gradients:
            return
        self.send("reduce_scatter", group.to_reduce.num_bytes, hidden=True)
        self.reducing = record.allocate(group.to_reduce)
        *others, last = gradients
        record.free_all(offset + place for place in others)
        reduced = record.allocate(group.reduced) if group.gradient.num_bytes != group.reduced.num_bytes else None
        self.keep(group.gradient)
        if reduced is not None:
            record.free(reduced)
        record.free(offset + last)  # foreach_reduce's loop still names it

    def _arrived(self) -> None:
        if self.reducing is not None:
            self.record.free(self.reducing)
            self.reducing = None

    def optimize(self, first: bool) -> None:
        """Update the own rows."""
        pairs = zip(self.shares, self.divided, strict=True)
        if self.offloads:
            self.sent.updated_on_host += sum(share.num_elements for share, one in pairs if one.parameter.trains)
            return
        self.update([share for share, one in pairs if one.parameter.is_reached], first)
