"""device_map: one process, each layer on one of several GPUs, one GPU at work at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.ddp import Strategy
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step


class DeviceMap(Strategy):
    """One of the GPUs: its own weights with their gradients and states, and the tensors allocated on it."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.weights = [one for one in step.placed if one.parameter.card == gpu]

    @property
    def gpus(self) -> Sequence[int]:
        return self.step.setting.placement.gpus

    @property
    def device(self) -> int:
        return self.gpu

    def load(self) -> None:
        self.load_whole(self.weights)

    def on_this_card(self, events: Sequence[int]) -> Sequence[int]:
        return self.step.unfolded.on_card(self.gpu, events)

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        self.record.extend(self.on_this_card(events), offset)

    def optimize(self, first: bool) -> None:
        """PyTorch's optimizers update each GPU's weights separately (_group_tensors_by_device_and_dtype)."""
        self.update([one.weight for one in self.weights if one.parameter.is_reached], first)

    def norms_from_elsewhere(self) -> int:
        """The whole norm is that of all norms, on the GPU of the first (utils/clip_grad.py: _get_total_norm)."""
        cards = [one.parameter.card for one in self.step.placed if one.parameter.is_reached]
        return len(cards) - cards.count(self.gpu) if cards and cards[0] == self.gpu else 0

    def drop_gradients(self, offset: int) -> None:
        self.record.free_all([offset + place for place in self.step.gradients_of(self.weights)])
