"""What a policy would make of a run that was recorded.

The recorded norms are those of the recorded batches: a batch that had grown would have taken other steps. The decisions
are those of the real controller on what was seen, and the steps are counted as if the run had gone the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.adaptive.controller import Controller
from vramplan.adaptive.decision import Decision
from vramplan.adaptive.noise_scale import NoiseScale, single_step
from vramplan.adaptive.observation import Observation, Unit
from vramplan.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """The run after an observation."""

    samples: int
    tokens: int
    batch: int
    """The global batch from here on."""
    learning_rate_factor: float
    learning_rate: float | None
    """The schedule's rate times the factor; None if the record has none."""
    noise_scale: float | None
    """In samples, averaged; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A policy on a recorded run."""

    policy: str
    points: tuple[Point, ...]
    decisions: tuple[Decision, ...]
    steps: float
    """Optimizer steps for the recorded samples at the simulated batches."""
    first_batch_steps: float
    """The same at the first batch throughout."""
    unused: dict[str, int]
    """Observations that the policy could not use, by the reason."""


def simulate(observations: Sequence[Observation], controller: Controller, half_life: int) -> Simulation:
    """Show a controller a recorded run.

    Args:
        observations: In order.
        controller: A new one; it is on its first rung.
        half_life: Of the averages of the noise scale that is shown, in the controller's unit.

    Raises:
        ConfigError: for observations that are not in order.
    """
    average, decisions, points = NoiseScale(half_life), [], []
    first_batch, steps = controller.rung.global_batch_size, 0.0
    samples = position = 0
    for observation in observations:
        steps += (observation.samples - samples) / controller.rung.global_batch_size
        decision = controller.observe(observation)
        if decision is not None:
            decisions.append(decision)
        position = _add(average, observation, position, controller.unit)
        estimate = average.estimate()
        rate, factor = observation.learning_rate, controller.learning_rate_factor
        points.append(
            Point(
                samples=observation.samples,
                tokens=observation.tokens,
                batch=controller.rung.global_batch_size,
                learning_rate_factor=factor,
                learning_rate=None if rate is None or observation.fault() else rate * factor,
                noise_scale=None if estimate is None else estimate.noise_scale,
            )
        )
        samples = observation.samples
    return Simulation(
        policy=controller.policy.name,
        points=tuple(points),
        decisions=tuple(decisions),
        steps=steps,
        first_batch_steps=samples / first_batch,
        unused=dict(controller.unused),
    )


def first_batch(observations: Sequence[Observation]) -> int:
    """The global batch that a recorded run began with: that of its first norms, or the samples of its steps."""
    sizes = [observation.large_batch for observation in observations if observation.large_batch is not None]
    first = observations[0]
    return round(sizes[0]) if sizes else max(1, first.samples // first.step)


def _add(average: NoiseScale, observation: Observation, position: int, unit: Unit) -> int:
    """Take the norms of an observation into an average, if they can be; the position of the last that was taken."""
    if observation.fault() or observation.fault_of_norms():
        return position
    now = observation.position(unit)
    average.add(*single_step(observation), now - position)
    return now
