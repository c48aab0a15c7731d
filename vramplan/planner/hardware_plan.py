"""What a search for hardware finds: plans, those that no other beats, and what is missing if none fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import inf

from vramplan.dataclass import dataclass
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.prices import Price
from vramplan.memory.estimate import Estimate
from vramplan.memory.host import offloaded
from vramplan.planner.hardware_candidates import Sharing, is_guess
from vramplan.planner.preference import SPEED_TOLERANCE
from vramplan.planner.search_result import Plan
from vramplan.result import Result

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class HardwarePlan:
    """A batch on a number of GPUs that fits."""

    gpu: Gpu
    sharing: Sharing
    plan: Plan = field(repr=False)
    price: Price | None = None
    """Of one GPU; None if it is not known."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Settings that differ from those that were asked for."""

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run; None if its length was not given."""
        return None if self.plan.run is None else self.plan.run.optimizer_updates

    @property
    def warmup_steps(self) -> int | None:
        """Optimizer steps that warm up; None if their share, or the length of the run, was not given."""
        return None if self.plan.run is None else self.plan.run.warmup_updates

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan takes."""
        return self.sharing.num_gpus

    @property
    def estimate(self) -> Estimate:
        """The memory of one GPU."""
        return self.plan.estimate

    @property
    def step_seconds(self) -> float | None:
        """Time of one optimizer step; None if a rate of the GPU, or of its links, is not known."""
        return None if self.estimate.step_time is None else self.estimate.step_time.seconds

    @property
    def price_per_hour(self) -> float | None:
        """Price of all GPUs for an hour; None if it is not known."""
        return None if self.price is None else self.price.per_hour * self.num_gpus

    @property
    def price_per_step(self) -> float | None:
        """Price of one optimizer step; None if the price or the time is not known."""
        if self.price_per_hour is None or self.step_seconds is None:
            return None
        return self.price_per_hour * self.step_seconds / SECONDS_PER_HOUR

    @property
    def host_bytes(self) -> int | None:
        """Memory of the hosts that offloading takes, all machines together; None without offloading."""
        job, all_weights = self.estimate.job, self.estimate.num_parameters
        if job.offload == "none":
            return None
        tensors = offloaded(job, all_weights, self.estimate.num_trainable_parameters, job.num_gpus)
        return sum(tensor.num_bytes for tensor in tensors)

    @property
    def run_seconds(self) -> float | None:
        """Time of the whole run; None if its length or the time of a step is not known."""
        return None if self.steps is None or self.step_seconds is None else self.steps * self.step_seconds

    @property
    def run_price(self) -> float | None:
        """Price of the whole run; None if its length, the time or the price is not known."""
        return None if self.steps is None or self.price_per_step is None else self.steps * self.price_per_step


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What is missing if no number of the GPUs holds the job."""

    gpu: Gpu
    """The largest of the GPUs that were asked for."""
    sharing: Sharing
    """How they need the least memory."""
    estimate: Estimate = field(repr=False)
    """The least that one GPU needs so."""
    larger: HardwarePlan | None = None
    """The same number of another GPU of the catalogue, the smallest that holds it."""
    cheapest: HardwarePlan | None = None
    """If plans fit, but none within the limit of the price: that of the lowest price per hour, or of the fewest GPUs if
    no price is known."""
    more: HardwarePlan | None = None
    """More of the GPU than were allowed, where they hold the job and no other GPU does."""
    usable_batch: int | None = None
    """The nearest global batch that more GPUs can share, if this one keeps some idle."""


@dataclass(frozen=True, slots=True)
class Hardware(Result):
    """The answer to "which GPUs, and how many?"."""

    model: str
    global_batch_size: int
    currency: str
    plans: tuple[HardwarePlan, ...]
    """The fastest plan for each GPU and number of GPUs that fits."""
    front: tuple[HardwarePlan, ...]
    """Those that no other beats in number of GPUs, time and price together; fewest GPUs first."""
    alternative: HardwarePlan | None = None
    """Frozen weights in four bits on one GPU (QLoRA), where that takes fewer or cheaper GPUs."""
    shortfall: Shortfall | None = None
    """Why no plan fits, if none does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """GPUs that cannot run the job, and why."""
    max_price: float | None = None
    """The limit of the price of all GPUs together for an hour, in `currency`; None for none."""
    meant: Mapping[str, str] = field(default_factory=dict)
    """Names in the file of prices that several boards share, and the short name of the one that is meant."""
    without_price: tuple[str, ...] = ()
    """GPUs that a limit of the price leaves out, because their price is not known."""

    @property
    def fewest(self) -> HardwarePlan | None:
        """The fewest GPUs that hold the job; of several the one of the lowest price per hour.

        This, the fastest and the cheapest are of GPUs that are no guess, where there are any: see :attr:`guesses`.
        """
        return _best(self._sure, *_FEWEST)

    @property
    def fastest(self) -> HardwarePlan | None:
        """The shortest step; None if no time is known."""
        return _best(self._sure, *_FASTEST)

    @property
    def cheapest(self) -> HardwarePlan | None:
        """The lowest price of a step, and so of the run; None if no price is known."""
        return _best(self._sure, *_CHEAPEST)

    @property
    def guesses(self) -> tuple[HardwarePlan | None, HardwarePlan | None, HardwarePlan | None]:
        """The fewest, the fastest and the cheapest of GPUs that are a guess; None for each that is no better."""
        sure, guesses = self._sure, [one for one in self.front if is_guess(one.gpu)]
        fewest, fastest, cheapest = (_better(guesses, sure, *order) for order in (_FEWEST, _FASTEST, _CHEAPEST))
        return fewest, fastest, cheapest

    @property
    def _sure(self) -> Sequence[HardwarePlan]:
        """The plans whose GPU is no guess; all if there are none."""
        return [one for one in self.front if not is_guess(one.gpu)] or self.front


Measure = Callable[[HardwarePlan], float | None]
"""What counts of a plan; None if it is not known."""
# what is the least, and what decides between equals
_FEWEST: tuple[Measure, ...] = (
    lambda one: one.num_gpus,
    lambda one: known(one.price_per_hour),
    lambda one: one.gpu.usable_bytes,
    lambda one: known(one.step_seconds),
)
_FASTEST: tuple[Measure, ...] = (lambda one: one.step_seconds, lambda one: known(one.price_per_hour))
_CHEAPEST: tuple[Measure, ...] = (lambda one: one.price_per_step, lambda one: known(one.step_seconds))


def _best(plans: Sequence[HardwarePlan], *order: Measure) -> HardwarePlan | None:
    """The plan of the least; None if that is not known of any."""
    able = [one for one in plans if order[0](one) is not None]
    return min(able, key=lambda one: [known(measure(one)) for measure in order], default=None)


def _better(plans: Sequence[HardwarePlan], others: Sequence[HardwarePlan], *order: Measure) -> HardwarePlan | None:
    """The best of the plans; None if the best of the others is as good."""
    best, other = _best(plans, *order), _best(others, *order)
    if best is None or other is None:
        return None if other is not None or best in others else best
    return best if known(order[0](best)) < known(order[0](other)) else None


def known(number: float | None) -> float:
    """The number; infinity if it is not known, which sorts last."""
    return inf if number is None else number


def simplest_of_fastest(plans: Sequence[HardwarePlan]) -> HardwarePlan | None:
    """The fastest plan; among equally fast ones the first, which is the simplest.

    A plan without a time counts as slower than those with one.
    """
    fastest = min((known(one.step_seconds) for one in plans), default=inf)
    return next((one for one in plans if known(one.step_seconds) <= fastest * (1 + SPEED_TOLERANCE)), None)


def is_cheaper(plan: HardwarePlan, others: Sequence[HardwarePlan]) -> bool:
    """Whether a plan's step costs less than that of all others whose price is known."""
    if plan.price_per_step is None:
        return False
    return all(one.price_per_step is None or plan.price_per_step < one.price_per_step for one in others)


def front_of(plans: Sequence[HardwarePlan]) -> list[HardwarePlan]:
    """The plans that no other beats in number of GPUs, time and price together, fewest GPUs and fastest first.

    A plan beats another if it is no worse in all and better in one. Without a price, or a time, a plan is compared on
    the rest, and beats those alone that lack it too; a guess beats guesses alone.
    """
    unbeaten = [one for one in plans if not any(_beats(other, one) for other in plans)]
    return sorted(
        unbeaten,
        key=lambda one: (one.num_gpus, is_guess(one.gpu), known(one.step_seconds), known(one.price_per_hour)),
    )


def _beats(one: HardwarePlan, other: HardwarePlan) -> bool:
    better = one.num_gpus < other.num_gpus
    if one.num_gpus > other.num_gpus or (is_guess(one.gpu) and not is_guess(other.gpu)):
        return False
    timed = one.step_seconds is not None and other.step_seconds is not None
    for mine, its in (
        (one.step_seconds, other.step_seconds),
        (one.price_per_step, other.price_per_step) if timed else (one.price_per_hour, other.price_per_hour),
    ):
        if its is None:
            continue
        if mine is None or mine > its:
            return False
        better = better or mine < its
    return better
