"""What `vramplan adapt --json` prints, as types."""

from __future__ import annotations

from vramplan.render.json_types import Exact


class AlternativeData(Exact):
    """The same global batch in smaller micro-batches."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    device_total_bytes: int | None
    step_seconds: float | None


class RungData(Exact):
    """A global batch that fits."""

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    num_gpus: int
    """GPUs that each take a micro-batch of their own."""
    device_total_bytes: int | None
    step_seconds: float | None
    """Time of an optimizer step; null if it is not known."""
    tokens: int
    """Of an optimizer step."""
    learning_rate_factor: float
    """Of the rate at the first global batch."""
    alternatives: list[AlternativeData]
    """For an out-of-memory at run time, the largest micro-batch first."""


class LadderData(Exact):
    """`vramplan adapt plan --json`."""

    model: str
    card: str
    sequence_length: int
    learning_rate_rule: str
    """sqrt or linear."""
    rungs: list[RungData]
    too_large: int | None
    """The global batch that ends the ladder because it does not fit; null if it ends where it was asked to."""
    expandable_segments: bool
    switches_checked: bool
    """Whether runs that switch between the rungs were simulated."""
    notes: list[str]
    """What is a guess about the GPU."""


class GlobalBatchData(Exact):
    """A way to reach a global batch."""

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    num_gpus: int


class DecisionData(Exact):
    """A change of the batch."""

    kind: str
    step: int
    samples: int
    tokens: int
    before: GlobalBatchData
    after: GlobalBatchData
    learning_rate_factor: float
    reason: str
    values: dict[str, float]
    """The numbers behind the reason."""


class PointData(Exact):
    """A simulated run after an observation."""

    samples: int
    tokens: int
    global_batch_size: int
    learning_rate_factor: float
    learning_rate: float | None
    noise_scale: float | None
    """In samples."""


class SimulationData(Exact):
    """`vramplan adapt simulate --json`: a policy on a recorded run."""

    policy: str
    steps: float
    """Optimizer steps for the recorded samples at the simulated batches."""
    first_batch_steps: float
    """The same at the first batch throughout."""
    decisions: list[DecisionData]
    unused: dict[str, int]
    """Observations that the policy could not use, by the reason."""
    points: list[PointData]
