"""What a training loop tells the controller after an optimizer step."""

from __future__ import annotations

from typing import Literal

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting

Unit = Literal["samples", "tokens"]
"""What dwell times, half-lives and schedules are counted in."""

LARGEST = 1e100
"""Of a loss or a norm: its square is still finite. Far beyond what fp32 holds."""


def check_unit(unit: str) -> Unit:
    """The unit, if it is one.

    Raises:
        ConfigError: naming those that are known.
    """
    if unit not in ("samples", "tokens"):
        raise ConfigError(f"{setting('unit', unit)}: expected samples or tokens")
    return "samples" if unit == "samples" else "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of a run after an optimizer step; the same on all ranks, so that all of them decide the same.

    The norms are those of the gradient of the mean loss, before clipping and before the step.
    """

    step: int
    """Optimizer steps so far, this one included."""
    samples: int
    """Samples so far, of all ranks, this step's included."""
    tokens: int
    """Tokens so far, the same way."""
    loss: float | None = None
    """Mean loss of this step's samples."""
    learning_rate: float | None = None
    """The schedule's own rate for this step, without the controller's factor."""
    small_norm_squared: float | None = None
    """Mean squared norm of the gradients of `small_batch` samples: of micro-batches, or of ranks."""
    small_batch: float | None = None
    large_norm_squared: float | None = None
    """Squared norm of the gradient of `large_batch` samples, of which the small ones are parts."""
    large_batch: float | None = None
    biased: bool = False
    """Whether the two norms are not of the same weights: of gradients of consecutive steps, for one micro-batch on one
    GPU."""

    def position(self, unit: Unit) -> int:
        """How far the run is, in samples or tokens."""
        return self.samples if unit == "samples" else self.tokens

    @property
    def has_norms(self) -> bool:
        """Whether there are norms of two batch sizes."""
        return None not in (self.small_norm_squared, self.small_batch, self.large_norm_squared, self.large_batch)

    def fault(self) -> str | None:
        """Why the observation cannot be used, in words; None if it can."""
        for name in ("loss", "learning_rate", "small_norm_squared", "large_norm_squared"):
            number = getattr(self, name)
            if number is not None and not abs(number) < LARGEST:
                return f"{name.replace('_', ' ')} is not finite"
        if not self.has_norms:
            return None
        assert self.small_norm_squared is not None
        assert self.large_norm_squared is not None
        if self.small_norm_squared < 0 or self.large_norm_squared < 0:
            return "a squared norm is negative"
        if self.small_norm_squared == 0 or self.large_norm_squared == 0:
            return "the gradient is zero"
        return None

    def fault_of_norms(self) -> str | None:
        """Why no noise can be estimated from the norms, in words; None if it can."""
        if not self.has_norms:
            return "gradient norms were not measured"
        assert self.small_batch is not None
        assert self.large_batch is not None
        if not 0 < self.small_batch < self.large_batch:
            return "one micro-batch on one GPU: the noise needs gradients of two batch sizes"
        return None
