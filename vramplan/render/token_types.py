"""What `vramplan suggest --tokens --json` prints, as types."""

from __future__ import annotations

from typing import Literal

from vramplan.render.json_types import EstimateData, Exact


class BatchShapeData(Exact):
    """The shape of a micro-batch."""

    samples: int
    length: int
    """Tokens of the longest sample."""


class TokenBudgetData(Exact):
    """The most tokens of a micro-batch on each GPU."""

    counting: Literal["padded", "packed"]
    """padded: samples times the longest; packed: the sum of lengths, also for padding-free batches."""
    max_tokens: int
    """0 if the longest sample does not fit."""
    longest_sample: int
    """Tokens of the longest sample that fits in a micro-batch of its own."""
    gradient_accumulation_steps: int | None
    """Micro-batches that reach the global tokens; null if these were not given."""
    micro_batch_tokens: int | None
    """Tokens of each of these micro-batches."""
    fullest: BatchShapeData
    """The shape of a full micro-batch that needs most memory."""
    estimate: EstimateData
    """What that shape needs."""


class TokenBudgetsData(Exact):
    """`vramplan suggest --tokens --json`."""

    model: str
    gpu: str
    longest_asked: int | None
    global_tokens: int | None
    expandable_segments: bool
    budgets: list[TokenBudgetData]
