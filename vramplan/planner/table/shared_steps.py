"""One model and job on many cards: what cards have in common is played once.

An estimate depends on few traits of a card: whether SDPA's flash kernel runs there, the size of cuBLAS's workspace,
what may be reserved. Cards that agree in the first two share the steps, of which only a few are played where a law
gives the others (:mod:`vramplan.analytic.batch_scaling`). A replay of the allocator holds for every capacity between
what it reserved and the least total that it was refused (:class:`vramplan.memory.replay.Replay`), so cards of nearly
the same size share that as well. Every answer is exact: it is the one that the card would get alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from vramplan.analytic import estimator
from vramplan.analytic.batch_scaling import BatchScaling, ScaledStep
from vramplan.analytic.played_step import no_cycle_collection
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.allocator import AllocatorSettings
from vramplan.memory.estimate import PartialEstimate
from vramplan.memory.overheads import cublas_workspace, outside_bytes
from vramplan.memory.replay import Replay, replay
from vramplan.memory.summarize import settle
from vramplan.planner.monotone_search import largest_batch, largest_by_tensors

KEPT = 12
"""Timelines that are kept: some MiB each."""


class Traits(NamedTuple):
    """What a step depends on of a card; the job has its dtypes."""

    runs_flash: bool
    size: int
    """Of account to ZeRO-1 and 2, which flatten weights on the host where the card has no room, and to transformers 4,
    which asks for no more than there is before it loads."""
    workspace: int
    """CuBLAS's: the plays of a law are the same whatever it is."""


def traits(card: Gpu, job: Job) -> Traits:
    """Those of a card."""
    sized = job.strategy in ("zero1", "zero2") or (job.is_mapped and job.experts == "linear")
    size = card.usable_bytes if sized else 0
    return Traits(card.runs_flash, size, cublas_workspace(card).num_bytes)


class Shared:
    """What cards of the same traits share; steps are played on `card`, one of them."""

    def __init__(self, spec: ModelSpec, job: Job, card: Gpu, law: BatchScaling | None = None) -> None:
        self.spec, self.job, self.card = spec, job, card
        self.law = law or BatchScaling(*estimator.prepare(spec, job, card)[:2])
        self.tensors: dict[int, int] = {}
        """Peak tensor bytes by micro-batch."""
        self.replays: dict[int, list[Replay]] = {}
        self.played: OrderedDict[int, ScaledStep] = OrderedDict()
        """By micro-batch, where there is no law."""
        self.largest: dict[int, int] = {}
        """The answer by limit."""

    def peak(self, micro: int) -> int:
        """Highest sum of live tensors at a micro-batch."""
        if micro not in self.tensors:
            self.tensors[micro] = self._course(micro).peak(micro)
        return self.tensors[micro]

    def _course(self, micro: int) -> ScaledStep:
        """The step at a micro-batch, or one that goes on to there."""
        if self.law.holds(micro):
            return self.law.course(micro, self.card)
        if micro in self.played:
            self.played.move_to_end(micro)
        else:
            begun = self._play(micro)
            assert begun.timeline is not None
            self.played[micro] = ScaledStep(begun.timeline, micro)
        if len(self.played) > KEPT:
            self.played.popitem(last=False)
        return self.played[micro]

    def _play(self, micro: int) -> PartialEstimate:
        job = self.job.model_copy(update={"micro_batch_size": micro})
        return estimator.begin(self.spec, job, self.card)

    def replayed(self, micro: int, limit: int) -> Replay:
        """What the allocator does where torch may reserve so much."""
        known = self.replays.setdefault(micro, [])
        for one in known:
            if one.peak_reserved_bytes <= limit < one.refused_bytes:
                return one
        course, settings = self._course(micro), AllocatorSettings(expandable_segments=self.job.expandable_segments)
        with no_cycle_collection():
            known.append(
                replay(course.events, course.sizes(micro), limit, settings, streams=course.streams, levels=False)
            )
        return known[-1]

    def fits(self, micro: int, limit: int) -> bool:
        """Whether a micro-batch fits; where its tensors alone do not, the allocator has no room for them either."""
        return self.tensors.get(micro, 0) <= limit and not self.replayed(micro, limit).out_of_memory

    def need(self, micro: int, card: Gpu) -> tuple[int, bool]:
        """(bytes on the card, whether that fits), as `estimate` says."""
        outside = outside_bytes(self.job, card)
        limits = (card.plannable_bytes - outside, card.usable_bytes - outside)
        run, fits, _ = settle(self.peak(micro), limits, lambda limit: self.replayed(micro, limit))
        return run.peak_reserved_bytes + outside, fits

    def max_batch(self, card: Gpu) -> int:
        """The largest micro-batch that fits, as `suggest` says; 0 for none."""
        limit = card.plannable_bytes - outside_bytes(self.job, card)
        if limit not in self.largest:
            self.largest[limit] = self._max_batch(limit)
        return self.largest[limit]

    def tokens_per_second(self, card: Gpu) -> int:
        """What one card gets through at the largest micro-batch that fits, as the roofline says; 0 where none does."""
        micro = self.max_batch(card)
        if not micro:
            return 0
        seconds = self._play(micro).seconds
        assert seconds is not None
        return round(micro * self.job.sequence_length / sum(seconds(card)))

    def _max_batch(self, limit: int) -> int:
        if self.peak(1) > limit or not self.fits(1, limit):
            return 0
        below = max(micro for micro, need in self.tensors.items() if need <= limit)
        above = min((micro for micro, need in self.tensors.items() if need > limit), default=None)
        return largest_batch(1, largest_by_tensors(below, above, self.peak, limit), lambda one: self.fits(one, limit))
