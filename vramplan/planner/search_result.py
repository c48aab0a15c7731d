"""What a search for a batch finds: plans, pairs that do not fit, changes that would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from vramplan.dataclass import dataclass
from vramplan.result import Result

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu
    from vramplan.inputs.job import Job
    from vramplan.memory.estimate import Estimate
    from vramplan.planner.images import Solved

TOO_LARGE = "needs more than the GPU has"
FRAGMENTED = "does not fit after fragmentation"
WITHOUT_MARGIN = "fits only without the safety margin"
"""The reason for a pair that the margin alone rules out."""
FREE = "free"
"""The cost of a change that costs nothing."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """Steps of a whole training run."""

    micro_steps: int
    """Forward and backward passes per GPU."""
    optimizer_updates: int
    """Optimizer steps, accumulation going on across epochs."""
    trainer_updates: int
    """The same in transformers' Trainer, which also steps at the end of every epoch."""
    warmup_updates: int | None = None
    """Of these, with a learning rate that is still rising; None if no share was given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to reach the global batch that fits."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel: int
    estimate: Estimate = field(repr=False)
    relative_step_time: float
    """Time of one optimizer step as a multiple of the fastest plan's."""
    run: RunLength | None = None
    """Steps of the whole run; None if its length was not given."""

    @property
    def global_batch_size(self) -> int:
        """Samples behind one optimizer step."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel


@dataclass(frozen=True, slots=True)
class Rejected:
    """A pair that does not fit, and why."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    reason: str
    device_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """A change that lessens communication, with what it comes to."""

    change: str
    """What it does, in words."""
    seconds_per_sample: float
    communication_share: float
    """Share of a step's time that communication takes then."""
    device_total_bytes: int


@dataclass(frozen=True, slots=True)
class CommunicationAdvice:
    """What communication costs at an accumulation and at twice as much, and what lessens it."""

    seconds: float
    """Communication of an optimizer step."""
    share: float
    """Of the step's time."""
    share_at_twice: float
    """The same at twice the accumulation."""
    enough_accumulation: int
    """The accumulation past which less than 2 % of a sample's time is left to gain."""
    gains: tuple[Gain, ...]
    """Changes that fit and make a sample faster, the best first."""
    text: str
    """All but the gains, in words."""


@dataclass(frozen=True, slots=True)
class Search(Result):
    """The answer to "which batch?"."""

    model: str
    card: Gpu
    job: Job
    global_batch_size: int
    plans: tuple[Plan, ...]
    """The preferred one first (:mod:`vramplan.planner.preference`)."""
    recommended: Plan | None
    max_micro_batch_size: int
    rejected: tuple[Rejected, ...]
    advice: tuple[LeverEffect, ...]
    """Changes that would help, estimated again."""
    warnings: tuple[str, ...]
    guidance: tuple[str, ...]
    """What is known of global batches such as this one, with its source."""
    smallest: Estimate
    """The estimate of the pair that needs least, which says why nothing fits if nothing does."""
    communication: CommunicationAdvice | None = None
    """What communication costs the recommended plan, if it is more than 2 % of a step."""
    reason: str = ""
    """Why the recommended plan is preferred to the others; empty if there are no others."""
    learning_rate: float | None = None
    adaptive: bool = True
    """Adam-type optimizer: the rate follows the root of the batch."""
    solved: Solved | None = None
    """The setting that was solved for first."""

    @property
    def estimate(self) -> Estimate:
        """Of the recommended plan; of the pair that needs least if none fits."""
        return self.smallest if self.recommended is None else self.recommended.estimate


@dataclass(frozen=True, slots=True)
class Run:
    """The whole training run around a plan."""

    samples: int | None = None
    epochs: float = 1.0
    tokens_total: int | None = None
    """Tokens of the whole run, instead of samples."""
    warmup_ratio: float | None = None
    """Share of the optimizer steps that warm up."""
    base_lr: float | None = None
    base_batch: int | None = None
    adaptive: bool = True
    """Adam-type optimizer: square-root rule; otherwise linear."""


@dataclass(frozen=True, slots=True)
class LeverEffect:
    """What a change does: the job with it, estimated again."""

    change: str
    """What to set, in the words of the command line."""
    why: str
    cost: str
    """What it costs: nothing, time, accuracy or money."""
    saved_bytes: int
    """Bytes on the GPU that it saves at the same micro-batch."""
    fits: bool
    micro_batch_size: int
    """The micro-batch that the figures are for."""
    device_total_bytes: int
    update: Mapping[str, Any] = field(default_factory=dict)
    """The same as fields of the job; empty for another GPU."""
    settings: tuple[str, ...] = ()
    """The same in the words of the configuration that was checked; empty for another GPU."""
    batch: tuple[str, ...] = ()
    """The batch to set beside it, in the same words, if the configuration has another."""
    card: str = ""
    """The name and size of another GPU."""
    eval_batch_size: int | None = None
    """The evaluation batch that fits beside it, if the configuration's own does not; 0 if none does."""
    costs: Mapping[str, str] = field(default_factory=dict)
    """Of several changes together: fields of the job -> the cost of the change that each is a part of."""
    doubts: tuple[str, ...] = ()
    """What could turn it although it fits: that vLLM may not start."""
