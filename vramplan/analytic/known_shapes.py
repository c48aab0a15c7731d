"""Timelines that were laid out before, for jobs that differ in the lengths of their samples alone.

A slider that changes the length, or a table over lengths, asks for the same events with other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.step_record import StepRecord, do_the_same
from vramplan.dataclass import dataclass
from vramplan.inputs.job import Job, with_batch

LENGTHS = ("sequence_length", "image_size", "min_pixels", "max_pixels", "max_tiles", "target_length", "audio_seconds")
"""Settings that change the sizes of a step's tensors, and its operations only where a kernel depends on them."""
MAX_EVENTS = 1 << 23
"""Events of the timelines that stay in memory, of 4 bytes each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What steps with the same events have in common, whatever the sizes of their storages."""

    record: StepRecord
    section_of: Sequence[int]
    """Number of the section that allocates each storage of the record."""
    run: SimulatedRun
    """The timelines of the GPUs that need different memory."""
    forward: Sequence[tuple[int, int]]
    """Number of each kernel of the last micro-step's forward in the record, and how often it runs."""
    backward: Sequence[tuple[int, int]]
    """The same of its backward."""


class _Known(NamedTuple):
    """A shape, and what decides whether it is another step's too, beside the record."""

    job: Job
    rest: object
    shape: Shape


class KnownShapes:
    """The shapes that were used last, up to :data:`MAX_EVENTS`."""

    def __init__(self) -> None:
        self._known: list[_Known] = []
        """The latest first."""
        self._lock = Lock()

    def find(self, job: Job, rest: object, record: StepRecord) -> Shape | None:
        """The shape of a step with this record; None if none is known.

        Args:
            job: its job.
            rest: equal for jobs whose steps differ in nothing else.
            record: the step.
        """
        job = without_lengths(job)
        with self._lock:
            for number, known in enumerate(self._known):
                if known.rest == rest and known.job == job and are_alike(known.shape.record, record):
                    self._known.insert(0, self._known.pop(number))
                    return known.shape
        return None

    def add(self, job: Job, rest: object, shape: Shape) -> None:
        """Keep a shape, and give up those that were not used for longest."""
        with self._lock:
            self._known.insert(0, _Known(without_lengths(job), rest, shape))
            total = 0
            for number, known in enumerate(self._known):
                total += known.shape.run.num_events
                if total > MAX_EVENTS and number:
                    del self._known[number:]
                    break


def without_lengths(job: Job) -> Job:
    """The job with the same lengths, and the same batch, for all."""
    return with_batch(job.model_copy(update=dict.fromkeys(LENGTHS)), 1, 1)


def are_alike(one: StepRecord, other: StepRecord) -> bool:
    """Whether two steps have one layout: a strategy looks at modules and kinds of storages, and at weights."""
    return one is other or (
        do_the_same(one, other)
        and one.first_products == other.first_products
        and [(info.module, info.category, info.what) for info in one.storages]
        == [(info.module, info.category, info.what) for info in other.storages]
        and [(weight.name, weight.shape, weight.dtype, weight.stored) for weight in one.weights]
        == [(weight.name, weight.shape, weight.dtype, weight.stored) for weight in other.weights]
    )
