"""torch's ``fully_shard`` as torchtune's recipes call it: layers, embedding and head if they are named, and the rest.

The rest is the root's, which is dropped after its forward as the layers are, since ``shard_model`` says so for it, too
(0.6.1, training/_distributed.py). No policy casts: weights are gathered and gradients reduced in the dtype that they
are stored in, after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.analytic.strategies.fsdp2 import Group
from vramplan.analytic.strategies.fsdp2_verl import HEAD, VerlFsdp2


class TorchtuneFsdp2(VerlFsdp2):
    """One GPU's part of a run."""

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
