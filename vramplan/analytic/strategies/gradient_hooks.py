"""Hooks that take each weight's gradient as soon as backward has produced it: DeepSpeed's, or an optimizer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.ddp import Strategy
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Step


class GradientHooks(Strategy):
    """A strategy whose hooks take gradients, where the simulated step gives them (`Tape.gives_gradients`)."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.gradients: dict[tuple[int, bool, bool], list[tuple[int, str]]] = {}
        """For the sections of each pattern: (event, name) of each weight's gradient that a hook takes."""
        self.arriving: list[tuple[int, str]] = []
        """Those of the section that runs."""
        self.num_arrived = 0
        """How many of them were taken."""

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        self.phase = piece.phase
        self.arriving, self.num_arrived = self._gradients(piece, events), 0
        self.stretch(piece, events, offset)

    def stretch(self, piece: UnfoldedSection, events: Sequence[int], offset: int, first: int = 0) -> None:
        """Record some events of a piece, from its event `first` on, and take each gradient as it is produced."""
        done, end = 0, first + len(events)
        for number, name in self.arriving[self.num_arrived :]:
            if number >= end:
                break
            self.num_arrived += 1
            self.record.extend(events[done : number - first], offset)
            done = number - first + 1
            self.take(piece.layer, name, offset + ~events[done - 1])
        self.record.extend(events[done:] if done else events, offset)

    def _gradients(self, piece: UnfoldedSection, events: Sequence[int]) -> list[tuple[int, str]]:
        """The gradients that a hook takes in a section, which is the same for all of its pattern."""
        gradients = self.gradients.get(piece.pattern)
        if gradients is None:
            step, gradients = self.step, []
            if step.record.gives_gradients and piece.phase.startswith("backward"):
                storages, source = step.record.storages, step.unfolded.source
                for number, event in enumerate(events):
                    if event < 0 and source[~event] in step.record.transient_gradients:
                        gradients.append((number, storages[source[~event]].module))
            self.gradients[piece.pattern] = gradients
        return gradients

    def take(self, layer: int | None, name: str, gradient: int) -> None:
        """Take the gradient of a layer's weight, which nothing else frees."""
        raise NotImplementedError

    def drop_gradients(self, offset: int) -> None:
        """Gradients are freed as they are produced."""
