"""DeepSpeed's ZeRO 1, where a step's micro-batches add up whole gradients, which are reduced once.

That happens behind the last backward, or, with overlap_comm, during it: hooks take each weight's sum, which frees its
memory (0.19, runtime/zero/stage_1_and_2.py: process_gradients, reduce_gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.zero12 import Trained, ZeroStage12
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step


class ZeroStage1(ZeroStage12):
    """One GPU's part of a run at stage 1."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.overlaps = self.zero.overlap_comm
        self.adds_up = step.micro_steps > 1
        self.offset = 0
        """Number of the simulated step's first storage."""
        self.untaken: set[int] = set()
        """With overlap_comm, the sums of several micro-batches' gradients that no hook has taken yet."""
        self.too_large: list[int] = []
        """Gradients too large for the bucket that other GPUs need: they stay until backward has ended."""

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """The first gradient allocates the bucket, though reduction waits for the last micro-batch."""
        self.offset = offset
        if piece.phase.startswith("backward") and not self.buckets:
            first = self._first_gradient(events)
            if first is not None:
                self.record.extend(events[:first], offset)
                self._open()
                events = events[first:]
                if self.overlaps:
                    self.untaken = {offset + place for place in self.step.gradients_of(self.step.placed)}
        super().run_section(piece, events, offset)

    def _first_gradient(self, events: Sequence[int]) -> int | None:
        """Index behind the events of the operation that produces the first gradient; None if none does."""
        storages, source = self.step.record.storages, self.step.unfolded.source
        gradients = {number for one in self.trained.values() for number in one.placed.parameter.gradient}
        after = next((n for n, event in enumerate(events, 1) if event >= 0 and source[event] in gradients), None)
        if after is None:
            return None
        partial = "partial sums of a gradient"
        rest = (n for n, e in enumerate(events[after:], after) if e >= 0 and storages[source[e]].what != partial)
        return next(rest, len(events))

    def arrived(self, one: Trained, gradient: int) -> None:
        """Reduce a gradient; if it was added to those of earlier micro-batches, it is freed: hooks take the sum."""
        super().arrived(one, gradient)
        is_large = self.large[-1:] == [gradient]
        kept = [self.large.pop()] if is_large else []
        if self.overlaps and self.adds_up:
            sums = [self.offset + place for place in self.step.gradients_of([one.placed])]
            self.untaken.difference_update(sums)
            self.record.free_all(kept or sums)
            kept = sums if is_large else []
        (self.large if self.elements(one) else self.too_large).extend(kept)

    def backward_ends(self) -> None:
        """All gradients are taken after the last micro-batch, unless hooks did."""
        if not self.is_last:
            return
        if not self.overlaps:
            for one in self.trained.values():
                for place in self.step.gradients_of([one.placed]):
                    self.arrived(one, self.offset + place)
        super().backward_ends()
        self.record.free_all([*self.too_large, *sorted(self.untaken)])
        self.too_large, self.untaken = [], set()
