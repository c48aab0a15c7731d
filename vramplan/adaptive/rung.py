"""A rung of a ladder: one way to reach a global batch."""

from __future__ import annotations

from vramplan.dataclass import dataclass
from vramplan.planner.training_run import check_numbers


@dataclass(frozen=True, slots=True)
class Rung:
    """A way to reach a global batch."""

    micro_batch_size: int
    """Samples of one forward on one GPU."""
    gradient_accumulation_steps: int
    num_gpus: int = 1
    """GPUs that each take a micro-batch of their own."""
    need_bytes: int | None = None
    """Memory that the planner says it needs of each GPU; None if it was not asked."""
    step_seconds: float | None = None
    """Time of an optimizer step; None if it is not known."""
    alternatives: tuple[Rung, ...] = ()
    """The same global batch in smaller micro-batches, the largest first, for an out-of-memory at run time."""

    def __post_init__(self) -> None:
        check_numbers(
            {
                "micro_batch_size": self.micro_batch_size,
                "gradient_accumulation_steps": self.gradient_accumulation_steps,
                "num_gpus": self.num_gpus,
            },
            {},
        )

    @property
    def global_batch_size(self) -> int:
        """Samples of an optimizer step."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.num_gpus
