"""DeepSpeed's states that leave the GPU between updates of a model.

(deepspeed 0.19, runtime/zero/stage3.py and stage_1_and_2.py: offload_states; OpenRLHF 0.11,
utils/deepspeed/deepspeed_utils.py.) They are fp32 weights, the optimizer's states and, at stage 3, the buffers of
gradients; the weights in half precision stay.
"""

from __future__ import annotations

from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage

BUFFERS = ("gradients of the own part", "reduce bucket (reduce_bucket_size)")
"""Labels of buffers that stage 3 holds between steps."""


class StatesOnHost:
    """The states of a model, which leave and come back."""

    def __init__(self, record: Recorder) -> None:
        self.record = record
        self.kinds: list[Storage] = []
        """Those that are on the host."""

    def leave(self) -> None:
        """Move what is on the GPU to the host."""
        if self.kinds:
            return
        record = self.record
        live = passes.live_at(record.events, len(record.events) - 1)
        moved = [number for number in live if moves(record.kinds[record.kind_of[number]])]
        self.kinds = [record.kinds[record.kind_of[number]] for number in moved]
        record.free_all(moved)
        record.empty_cache()

    def come_back(self) -> None:
        """Move it back, as an update begins."""
        self.record.enter("forward")
        self.record.allocate_all(self.kinds)
        self.kinds = []


def moves(kind: Storage) -> bool:
    """Whether a storage leaves the GPU."""
    return kind.category == "optimizer_state" or kind.label in BUFFERS
