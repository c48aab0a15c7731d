"""Completions that are scored under ZeRO-3 and FSDP: a forward without gradients, for which weights are gathered.

The strategy sees it like a forward of a step: ZeRO-3 learns the order of the modules from it, or finds that they run in
another order than it learned.
"""

from __future__ import annotations

from itertools import pairwise

from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord
from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.unfolded_step import Step, describe_in
from vramplan.memory import passes
from vramplan.memory.timeline import Storage

POLICY, REFERENCE, REWARD = "reference.policy.0", "reference.0", "reference.reward.0"
"""Names of the forwards to the strategy: of the model that trains, of its reference, of a reward model."""
FORWARDS = 2
"""Micro-batches that are scored: the second finds what the first leaves, and a third would not differ."""


def scored_step(step: Step, setting: StepSpec, record: StepRecord, phase: str) -> Step:
    """A micro-batch of completions that is scored by the weights of a step's model."""
    sections = [one._replace(phase=phase) if one.phase == "scoring" else one for one in record.sections]
    own = step.record
    record = record._replace(sections=sections, weights=own.weights, embedded=own.embedded)
    return Step(setting, step.plan, step.card, record=record)


class ShardedScoring:
    """Forwards without gradients: of the model that trains, of the reference, or of a reward model."""

    def __init__(
        self,
        name: str,
        step: Step,
        phase: str,
        forwards: int = 1,
        needs: tuple[str, ...] = ("weights",),
        by_engine: bool = True,
    ) -> None:
        self.name, self.step, self.phase = name, step, phase
        self.by_engine = by_engine
        """Whether the whole model runs, or a module within it that is called by itself (TRL's PPO)."""
        self.needs = needs
        """What of the model is on the GPU meanwhile, of what may wait in host memory."""
        self.forwards = min(FORWARDS, forwards)
        self.others: list[Storage] = []
        """What else lives from its beginning to its end."""

    def beside(self, storage: Storage) -> ShardedScoring:
        """The forwards with a storage that lives from their beginning to their end."""
        self.others.append(storage)
        return self

    @property
    def kinds(self) -> list[Storage]:
        """The storages of the simulated forward."""
        step = self.step
        section_of = step.unfolded.section_of
        return [
            describe_in(step.setting, step.record, section_of, number, info.on(step.card))
            for number, info in enumerate(step.record.storages)
        ]

    def score(self, model: Strategy, known: dict[int, int]) -> None:
        """Add the events to a run; `known` has the first kind of each phase that was added before."""
        record, step = model.record, self.step
        record.enter(self.name)
        first = known.setdefault(id(self), len(record.kinds))
        if first == len(record.kinds):
            record.add_kinds(self.kinds)
        others = record.allocate_all(self.others)
        events, pieces = step.unfolded.events, step.unfolded.pieces
        ends = [after.first_event for _, after in pairwise(pieces)] + [len(events)]
        for _ in range(self.forwards):
            offset = record.splice(passes.shifted(step.unfolded.source, first))
            with model.scoring(step, self.by_engine):
                for piece, end in zip(pieces, ends, strict=True):
                    if piece.phase == self.phase:
                        model.run_section(piece, events[piece.first_event : end], offset)
                        continue
                    model.forward_ends()
                    record.extend(events[piece.first_event : end], offset)
        record.free_all(others)
        model.scoring_ends()
