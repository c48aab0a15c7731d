"""One model and job on many cards: what cards have in common is played once.

An estimate depends on few traits of a card: whether SDPA's flash kernel runs there, the size of cuBLAS's workspace,
what may be reserved. Cards that agree in the first two share the played steps. A replay of the allocator holds for
every capacity between what it reserved and the least total that it was refused (:class:`vramplan.allocator.Replay`), so
cards of nearly the same size share that as well. Every answer is exact: it is the one that the card would get alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from vramplan.allocator import Replay
from vramplan.analytic import estimator
from vramplan.batches import largest_batch, most_by_tensors
from vramplan.card import Card
from vramplan.conclude import replayer, settle
from vramplan.job import Job
from vramplan.overheads import cublas_workspace, outside_terms
from vramplan.spec import ModelSpec

KEPT = 12
"""Timelines that are kept: some MiB each."""


def traits(card: Card) -> tuple[bool, int]:
    """What a played step depends on of a card, whatever its size; the job has its dtypes."""
    return card.runs_flash, cublas_workspace(card).num_bytes


class Ready(NamedTuple):
    """A played step, ready for any card of its traits."""

    replay: Callable[[int], Replay]
    """By what torch may reserve."""
    seconds: Callable[[Card], tuple[float, float]]
    """Of a micro-step and of the optimizer's step."""


class Shared:
    """What cards of the same traits share; steps are played on `card`, one of them."""

    def __init__(self, spec: ModelSpec, job: Job, card: Card) -> None:
        self.spec, self.job, self.card = spec, job, card
        self.outside_bytes = _outside(job, card)
        self.tensors: dict[int, int] = {}
        """Peak tensor bytes by micro-batch."""
        self.replays: dict[int, list[Replay]] = {}
        self.ready: OrderedDict[int, Ready] = OrderedDict()
        self.largest: dict[int, int] = {}
        """The answer by limit."""

    def peak(self, micro: int) -> int:
        """Highest sum of live tensors at a micro-batch."""
        if micro not in self.tensors:
            self._play(micro)
        return self.tensors[micro]

    def _play(self, micro: int) -> Ready:
        if micro in self.ready:
            self.ready.move_to_end(micro)
            return self.ready[micro]
        job = self.job.model_copy(update={"micro_batch_size": micro})
        begun = estimator.begin(self.spec, job, self.card)
        assert begun.timeline is not None
        assert begun.seconds is not None
        self.tensors[micro] = begun.least_bytes - self.outside_bytes
        self.ready[micro] = Ready(replayer(begun.timeline, job), begun.seconds)
        if len(self.ready) > KEPT:
            self.ready.popitem(last=False)
        return self.ready[micro]

    def replayed(self, micro: int, limit: int) -> Replay:
        """What the allocator does where torch may reserve so much."""
        known = self.replays.setdefault(micro, [])
        for one in known:
            if one.peak_reserved_bytes <= limit < one.refused_bytes:
                return one
        known.append(replace(self._play(micro).replay(limit), allocated=()))
        return known[-1]

    def fits(self, micro: int, limit: int) -> bool:
        """Whether a micro-batch fits."""
        return self.peak(micro) <= limit and not self.replayed(micro, limit).out_of_memory

    def need(self, micro: int, card: Card) -> tuple[int, bool]:
        """(bytes on the card, whether that fits), as `estimate` says."""
        outside = _outside(self.job, card)
        limits = (card.plannable_bytes - outside, card.usable_bytes - outside)
        run, fits, _ = settle(self.peak(micro), limits, lambda limit: self.replayed(micro, limit))
        return run.peak_reserved_bytes + outside, fits

    def max_batch(self, card: Card) -> int:
        """The largest micro-batch that fits, as `suggest` says; 0 for none."""
        limit = card.plannable_bytes - _outside(self.job, card)
        if limit not in self.largest:
            self.largest[limit] = self._max_batch(limit)
        return self.largest[limit]

    def tokens_per_second(self, card: Card) -> int:
        """What one card gets through at the largest micro-batch that fits, as the roofline says; 0 where none does."""
        micro = self.max_batch(card)
        if not micro:
            return 0
        return round(micro * self.job.sequence_length / sum(self._play(micro).seconds(card)))

    def _max_batch(self, limit: int) -> int:
        if not self.fits(1, limit):
            return 0
        below = max(micro for micro, need in self.tensors.items() if need <= limit)
        above = min((micro for micro, need in self.tensors.items() if need > limit), default=None)
        return largest_batch(1, most_by_tensors(below, above, self.peak, limit), lambda one: self.fits(one, limit))


def _outside(job: Job, card: Card) -> int:
    return sum(term.num_bytes for term in outside_terms(job, card))
