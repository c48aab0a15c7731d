"""torch's ``fully_shard`` as torchtune's recipes call it: layers, embedding and head if they are named, and the rest.

The rest is the root's, which is dropped after its forward as the layers are, since ``shard_model`` says so for it, too
(0.6.1, training/_distributed.py). No policy casts: weights are gathered and gradients reduced in the dtype that they
are stored in, after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.fsdp2 import Group
from vramplan.analytic.strategies.fsdp2_verl import HEAD, VerlFsdp2
from vramplan.memory.optimizers import optimizer_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage

if TYPE_CHECKING:
    from vramplan.analytic.strategies.micro_steps import State
    from vramplan.analytic.unfolded_step import Step


class TorchtuneFsdp2(VerlFsdp2):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.reduced_group: Group | None = None
        """The group whose gradients were reduced last."""
        self.is_first = True
        """Whether optimizers in backward have no states yet."""

    @property
    def grouped_alone(self) -> dict[str, str]:
        """``custom_sharded_layers``."""
        return super().grouped_alone if self.job.fsdp.wraps_embeddings else {}

    def forward_ends(self) -> None:
        """End a forward, of which the reference's phase has the same name in every step."""
        super().forward_ends()
        self.phase = ""

    def _head_forward(self, events: Sequence[int], offset: int) -> None:
        """Gather the head for each section of the tokens that it runs on (modules/transformer.py: chunked_output)."""
        storages, source = self.step.record.storages, self.step.unfolded.source
        allocated = self._allocated(events, HEAD)
        ends = [n + 1 for n in allocated if storages[source[events[n]]].what == "logits"]
        for begin, end in zip([0, *ends[:-1]], [*ends[:-1], len(events)], strict=True):
            self._forward(self.behind, events[begin:end], offset)

    def _head_in_backward(self, events: Sequence[int]) -> tuple[int, int]:
        """A head of its own waits for the gradient of logits before they were converted to fp32."""
        begin, end = super()._head_in_backward(events)
        return (self._allocated(events, HEAD)[0], end) if self.behind else (begin, end)

    # -- optimizers in backward ----------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """What makes two micro-steps alike; the first of optimizers in backward makes their states."""
        return None if self.job.optimizer_in_backward else super().state()

    def _reduce(self, group: Group, gradients: list[int]) -> None:
        self.reduced_group = group
        super()._reduce(group, gradients)

    def keep(self, gradient: Storage) -> None:
        """Keep reduced gradients, or update their weights one by one.

        torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py: foreach_reduce.
        """
        if not self.job.optimizer_in_backward:
            super().keep(gradient)
            return
        assert self.reduced_group is not None
        number = self.record.allocate(gradient)
        step = optimizer_of(self.job.optimizer).step_in(self.job.loop)
        for share, one in zip(self.reduced_group.shares, self.reduced_group.members, strict=True):
            if one.parameter.trains:
                step(self.record, [share], self.is_first)
        self.record.free(number)

    def optimize(self, first: bool) -> None:
        if self.job.optimizer_in_backward:
            self.is_first = False
        else:
            super().optimize(first)

    # -- the head ------------------------------------------------------------------------------------------------------

    def _prepare_backward(self, group: Group) -> None:
        """Gather a head of sections alone: the forward before that of its last section is its own."""
        if group not in self.behind or self.job.loss != "sections":
            super()._prepare_backward(group)
        elif group not in self.weights:
            self._request(group)
            self.record.free(self._receive(group))

    def _finish_backward(self, group: Group, offset: int) -> None:
        if group in self.behind:
            self._request(self.order[self.order.index(group) - 1])
        super()._finish_backward(group, offset)
