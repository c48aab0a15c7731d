"""The memory of a training run in order: loading, two optimizer steps, and, beside them, an evaluation.

The second step is the one that counts: optimizer states exist by then while gradients are built again.
"""

from __future__ import annotations

from functools import cached_property

from vramplan.analytic.layer_folding import unfold
from vramplan.analytic.strategies import strategy_of
from vramplan.analytic.train_step import simulate_evaluation
from vramplan.analytic.unfolded_step import Step, buffers_of
from vramplan.memory.overheads import cublas_workspace
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Timeline


class SimulatedRun:
    """The timelines of a simulated step, one per GPU if GPUs differ, and its evaluation peaks."""

    def __init__(self, step: Step) -> None:
        self.step = step

    @property
    def timeline(self) -> Timeline:
        """The first GPU's timeline; that of every GPU if all do the same."""
        return self.timelines[0]

    @cached_property
    def timelines(self) -> dict[int, Timeline]:
        """Timeline by GPU; only one if all do the same."""
        return {card: self._timeline(card) for card in self.step.setting.placement.gpus}

    def _timeline(self, card: int) -> Timeline:
        """Loading and two optimizer steps, each of at most two micro-steps: without gradients, and on top of them."""
        record = Recorder()
        share = strategy_of(self.step, record, card)
        record.enter("loaded")
        share.load()
        for buffer in buffers_of(self.step.setting) if card == self.step.setting.placement.rotary else ():
            record.allocate(buffer)
        share.prepare()
        record.enter("forward")
        for _ in ("forward", "backward"):  # one for each thread
            record.allocate(cublas_workspace(self.step.card))
        events, pieces = self.step.unfolded.events, self.step.unfolded.pieces
        ends = [piece.first_event for piece in pieces[1:]] + [len(events)]
        for step in range(2):
            offset = record.splice(self.step.storages)
            for before, piece, end in zip((None, *pieces), pieces, ends, strict=False):
                if before is not None and before.phase.startswith("backward") and piece.phase != before.phase:
                    share.backward_ends()
                if piece.phase == "end":  # the training loop's own part
                    record.enter("optimizer")
                    share.optimize(first=step == 0)
                    share.drop_gradients(offset)
                    record.extend(share.on_this_card(events[piece.first_event : end]), offset)
                    break
                record.enter(piece.phase.partition(".")[0])
                share.run_section(piece, events[piece.first_event : end], offset)
        return record.timeline()

    def evaluation_bytes(self, card: int = 0) -> int:
        """Highest bytes of live tensors in a forward without gradients, without model and states."""
        return self._evaluations[card]

    @cached_property
    def _evaluations(self) -> dict[int, int]:
        tape = simulate_evaluation(self.step.setting)
        unfolded = unfold(tape, self.step.plan, brief=True)
        storages = self.step.described(tape, unfolded)
        gathered = strategy_of(self.step, Recorder()).gathered_bytes()
        found = {}
        for card in self.step.setting.placement.gpus:
            events = unfolded.on_card(card, unfolded.events)
            found[card] = max(Timeline(storages, events, []).live_bytes(), default=0) + gathered
        return found
