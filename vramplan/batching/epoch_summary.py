"""What the batches of an epoch are, in numbers."""

from __future__ import annotations

from vramplan.dataclass import dataclass


@dataclass(frozen=True)
class EpochSummary:
    """What an epoch does, over all GPUs."""

    steps: int
    micro_batches: int
    tokens: int
    """Real ones."""
    tokens_with_padding: int
    largest_micro_batch: int
    """Tokens, padding included: what the memory is needed for."""
    fewest_step_tokens: int
    most_step_tokens: int

    @property
    def padding(self) -> float:
        """Share of the tokens that are padding, 0 to 1."""
        return 1 - self.tokens / self.tokens_with_padding
