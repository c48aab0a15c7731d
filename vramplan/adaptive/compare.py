"""Several policies on one recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vramplan.adaptive.controller import Controller
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.ladder import check_largest, global_batches
from vramplan.adaptive.observation import Observation, Unit
from vramplan.adaptive.policies.by_name import STEPS, Settings, policy_by_name
from vramplan.adaptive.record import read_record
from vramplan.adaptive.rung import Rung
from vramplan.adaptive.simulate import Simulation, first_batch, simulate
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A record, and the policies to show it to; None is filled in from the record."""

    record: Path
    policies: tuple[str, ...]
    times: int
    """The largest global batch as a multiple of the first, if it is None."""
    unit: Unit
    coupling: str = "sqrt"
    global_batch: int | None = None
    largest_global_batch: int | None = None
    dwell: int | None = None
    half_life: int | None = None
    share: float = 1.0
    eta: float = 0.5
    points: Sequence[tuple[int, int]] = ()


def simulations(question: Question) -> list[Simulation]:
    """Each policy on the record.

    Raises:
        ConfigError: for a record that is none, and settings that are impossible.
        UnknownNameError: for an unknown policy or coupling.
    """
    if not question.policies:
        raise ConfigError("--policy: name at least one")
    observations = read_record(question.record)
    first = first_batch(observations) if question.global_batch is None else question.global_batch
    largest = first * question.times if question.largest_global_batch is None else question.largest_global_batch
    check_largest(first, largest)
    # where tokens are counted, a first batch is worth as many of them as it has on average
    each = 1.0 if question.unit == "samples" else _tokens_per_sample(observations)
    default = max(1, round(STEPS * first * each))
    half_life = default if question.half_life is None else question.half_life
    dwell = default if question.dwell is None else question.dwell
    settings = Settings(
        half_life=half_life,
        unit=question.unit,
        share=question.share,
        eta=question.eta,
        points=question.points,
        smallest=first,
        largest=largest,
    )
    rungs = [Rung(batch, 1) for batch in global_batches(first, largest)]
    return [
        simulate(
            observations,
            Controller(rungs, policy_by_name(name, settings), Coupling(question.coupling), dwell, question.unit),
            half_life,
        )
        for name in question.policies
    ]


def _tokens_per_sample(observations: Sequence[Observation]) -> float:
    last = observations[-1]
    return last.tokens / max(1, last.samples)
