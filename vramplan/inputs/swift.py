"""Settings that ms-swift's training alone has."""

from __future__ import annotations

from vramplan.inputs.record import Record, field


class Swift(Record):
    """How ms-swift's processes share the tokens of a text."""

    sequence_parallel: int = field(default=1, gt=0, le=1 << 10)
    """GPUs that share the tokens of each micro-batch, of which each computes all tokens of some heads in attention
    (``sequence_parallel_size``). Samples, and rows, are those of all of them together."""
    cross_entropy_chunk: int | None = field(default=None, gt=0, le=1 << 24)
    """Tokens whose cross-entropy is computed at a time where GPUs share texts (``CELOSS_PARALLEL_SIZE``); null: all."""
    chunks_in_place: bool = False
    """Whether the gradients of such chunks are written over the logits (up to ms-swift 4.5)."""

    @property
    def sharing(self) -> tuple[int, ...]:
        """GPUs that share a micro-batch, if several do."""
        return (self.sequence_parallel,) if self.sequence_parallel > 1 else ()
