"""torch's ``fully_shard`` as verl's engine calls it: embedding and head are groups of their own unless they are tied.

All else outside the layers is the root's, which is dropped after its forward as the layers are, since verl says so by
itself (verl 0.9.1, utils/fsdp_utils.py: apply_fsdp2; torch 2.13, distributed/fsdp/_fully_shard/_fsdp_state.py:
_lazy_init). Gradients are reduced in another dtype than weights are gathered in, after every micro-batch, or once:
until then they wait whole, in the dtype of the reduction (_fsdp_param.py: to_accumulated_grad_if_needed).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.fsdp2 import Fsdp2, Group
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step

HEAD = "lm_head"


class VerlFsdp2(Fsdp2):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.late: dict[Group, list[int]] = {}
        """Gradients that are added when all of their group are there."""
        self.whole: dict[Group, list[int]] = {}
        """Gradients that wait for the last micro-batch."""
        self.reduced: set[Group] = set()
        """Groups with a reduced gradient, to which those of further micro-batches are added."""

    @property
    def root(self) -> Group:
        """The group of what is in no other."""
        return self.before[0]

    @property
    def grouped_alone(self) -> dict[str, str]:
        """Beginnings of the names of weights in groups of their own, unless they are tied: the groups."""
        assert self.step.embedded is not None
        return {self.step.embedded.name: "embedding"} | ({} if self.job.verl.head_in_root else {HEAD: "head"})

    def groups_of_weights(self) -> tuple[list[Group], dict[int, Group], list[Group]]:
        """(The root and the embedding, the layers, the head) (utils/fsdp_utils.py: _select_fsdp2_wrap_targets)."""
        setting = self.step.setting
        alone = {} if setting.architecture.is_tied(setting.config) else self.grouped_alone
        by_place: dict[int | str, list[int]] = {"root": []}
        for number, one in enumerate(self.divided):
            name = one.parameter.name
            outside = next((place for start, place in alone.items() if name.startswith(start)), "root")
            by_place.setdefault(outside if one.layer is None else one.layer, []).append(number)
        keeps = not self.job.fsdp.reshard_after_forward

        def group(place: int | str) -> Group:
            numbers = by_place[place]
            members, shares = [self.divided[n] for n in numbers], [self.shares[n] for n in numbers]
            name = place if isinstance(place, str) else "layers.*"
            # the root stays from its forward's beginning to its end
            return Group(name, members, shares, self.job.num_gpus, keeps or place == "root", self.job.fsdp.reduce_dtype)

        layers = {place: group(place) for place in by_place if isinstance(place, int)}
        before = [group(place) for place in ("root", "embedding") if place in by_place]
        return before, layers, [group("head")] if "head" in by_place else []

    # -- forward -------------------------------------------------------------------------------------------------------

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """Gather before, drop or reduce after; around the head events are those of the norm and of the loss."""
        if piece.phase != self.phase:
            self.phase, self.inside = piece.phase, False
            self._free_held()
        is_last = piece in self.step.unfolded.ends  # not what lies between a tower and the text
        if piece.layer is None and not piece.phase.startswith("backward") and self.inside and is_last:
            self._end_forward(events, offset)
            return
        super().run_section(piece, events, offset)

    def _end_forward(self, events: Sequence[int], offset: int) -> None:
        begin, end = self._span(events, HEAD) if self.behind else (0, self._loss_begins(events))
        self.record.extend(events[:begin], offset)
        self._head_forward(events[begin:end], offset)
        if self.job.fsdp.reshard_after_forward and not self.job.verl.keeps_root:
            self._drop(self.root)
        self._free_held()
        self.record.extend(events[end:], offset)

    def _head_forward(self, events: Sequence[int], offset: int) -> None:
        self._forward(self.behind, events, offset)

    def _enter(self, group: Group) -> None:
        super()._enter(group)
        if self.job.fsdp.forward_prefetch and group is not self.root:
            for following in self.order[self.order.index(group) + 1 :][:1]:
                self._request(following)

    def _allocated(self, events: Sequence[int], module: str) -> list[int]:
        """Indices of the events that allocate a module's storages."""
        storages, source = self.step.record.storages, self.step.unfolded.source
        return [n for n, e in enumerate(events) if e >= 0 and storages[source[e]].module.startswith(module)]

    def _span(self, events: Sequence[int], module: str) -> tuple[int, int]:
        """Indices of a module's first event, and of the first one behind that allocates another's storage."""
        own = self._allocated(events, module)
        end = next((n for n in range(own[-1] + 1, len(events)) if events[n] >= 0), len(events))
        return own[0], end

    def _loss_begins(self, events: Sequence[int]) -> int:
        return next(iter(self._allocated(events, "loss")), len(events))

    # -- backward ------------------------------------------------------------------------------------------------------

    def _backward(self, piece: UnfoldedSection, groups: list[Group], events: Sequence[int], offset: int) -> None:
        """Backward in the opposite order; groups outside the layers come first and last."""
        if piece.layer is not None:
            self._prepare_backward(groups[0])
            self._extend(events, offset, groups[0])
            if piece.layer not in self.step.record.layers_without_input_grad:
                self._finish_backward(groups[0], offset)
        elif not self.inside:
            begin, end = self._head_in_backward(events)
            self.record.extend(events[:begin], offset)
            for group in (*self.behind, self.root):  # both wait for the gradient of the logits
                self._prepare_backward(group)
            self._extend(events[begin:end], offset)
            for group in self.behind:
                self._finish_backward(group, offset)
            self._extend(events[end:], offset)
        elif piece not in self.step.unfolded.ends:
            self._extend(events, offset)
        else:
            if self.embedding_needs_grad and self.before[-1] is not self.root:
                self._prepare_backward(self.before[-1])
            self._extend(events, offset)
            self._end_backward(offset)

    def _prepare_backward(self, group: Group) -> None:
        super()._prepare_backward(group)
        if group is self.root:  # whose forward ends last
            self._request(self.order[-1])

    def _head_in_backward(self, events: Sequence[int]) -> tuple[int, int]:
        """Indices of the first event behind the loss's backward, and of the first behind the head's."""
        lost = self._allocated(events, "loss")
        begin = next((n for n in range(lost[-1] + 1, len(events)) if events[n] >= 0), len(events)) if lost else 0
        return begin, self._span(events, HEAD)[1] if self.behind else begin

    def _extend(self, events: Sequence[int], offset: int, group: Group | None = None) -> None:
        """All but the end of a gradient that is added to another: it waits for the others of its group."""
        added, source = self.step.record.transient_gradients, self.step.unfolded.source
        late = [] if self._adds_at_once else [event for event in events if event < 0 and source[~event] in added]
        if not late:
            self.record.extend(events, offset)
            return
        waiting = set(late)
        self.record.extend([event for event in events if event not in waiting], offset)
        for event in late:
            module = self.step.record.storages[source[~event]].module
            self.late.setdefault(group or self._outside(module), []).append(offset + ~event)

    def _outside(self, module: str) -> Group:
        """The group of a weight outside of the layers."""
        embedded = self.step.embedded
        if self.behind and module.startswith(HEAD):
            return self.behind[0]
        return self.before[-1] if embedded is not None and module.startswith(embedded.name) else self.root

    @property
    def _adds_at_once(self) -> bool:
        """Whether autograd adds the gradients of micro-batches, which wait whole in the dtype that it makes them in."""
        return not self.job.fsdp.sync_each_batch and self.job.fsdp.reduce_dtype in (None, self.job.computed_dtype)

    def _finish_backward(self, group: Group, offset: int) -> None:
        """Drop the group's weights, and reduce its gradients, or keep them whole."""
        if self._adds_at_once:
            super()._finish_backward(group, offset)
            return
        record = self.record
        self.finished.add(group)
        gradients = self.late.pop(group, [])
        if self.phase == "backward.0":
            gradients = [offset + place for place in self.step.gradients_of(group.members)]
        gradients.sort(key=lambda number: self._rank(number - offset))
        if group in self.whole:
            record.free_all(gradients)
            gradients = self.whole.pop(group)
        self._drop(group)
        if not self.is_last and not self.job.fsdp.sync_each_batch:
            self.whole[group] = self._in_dtype_of_reduction(group, gradients)
            return
        self._arrived()
        if gradients:
            self._reduce(group, gradients)

    def _rank(self, storage: int) -> int:
        """Where a gradient stands in its module: norms behind others, a head of the root last."""
        module = self.step.record.storages[self.step.unfolded.source[storage]].module
        is_tied = self.step.setting.architecture.is_tied(self.step.setting.config)
        return 2 if module.startswith(HEAD) and not is_tied else int("norm" in module)

    def _in_dtype_of_reduction(self, group: Group, gradients: list[int]) -> list[int]:
        """The same gradients, one after another."""
        size, found = DTYPE_BYTES[self.job.fsdp.reduce_dtype or "fp32"], list[int]()
        trained = [one for one in group.members if one.parameter.gradient]
        for one, gradient in zip_longest(trained, gradients):
            if one is not None:
                what = f"{group.name}: whole gradients"
                found.append(self.record.allocate(Storage(one.parameter.num_elements * size, "gradient", what)))
            if gradient is not None:
                self.record.free(gradient)
        return found

    def _reduce(self, group: Group, gradients: list[int]) -> None:
        """Reduce gradients (_fsdp_collectives.py: foreach_reduce)."""
        record, first = self.record, group not in self.reduced
        self.send("reduce_scatter", group.to_reduce.num_bytes, hidden=True)
        self.reducing = record.allocate(group.to_reduce)
        *others, last = gradients
        record.free_all(others)
        casts = group.gradient.num_bytes != group.reduced.num_bytes
        reduced = record.allocate(group.reduced) if casts or not first else None
        if first:
            self.keep(group.gradient)
        elif casts:
            record.free(record.allocate(group.gradient))
        if reduced is not None:
            record.free(reduced)
        record.free(last)  # the loop still names it
        if self.job.fsdp.sync_each_batch and not self.offloads:
            self.reduced.add(group)

    def drop_gradients(self, offset: int) -> None:
        super().drop_gradients(offset)
        self.reduced.clear()
