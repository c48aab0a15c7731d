"""A reason why memory ran out, and what to do about it."""

from __future__ import annotations

from vramplan.dataclass import dataclass

FEWER_SAMPLES = "smaller {micro_batch_size}, more {gradient_accumulation_steps}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, and what to do."""

    name: str
    text: str
    changes: tuple[str, ...] = ()
    """What to do, the most useful first. A setting in braces is a field of the job or a key of transformers' Trainer,
    with a value or without: ``{loss=liger}``; `spelling` puts the framework's own words there."""
