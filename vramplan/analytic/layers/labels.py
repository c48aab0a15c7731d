"""Labels of a causal language model."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape


def shifted_labels(tape: Tape, batch: int, length: int) -> list[Tensor]:
    """Padded and shifted labels on the first GPU, then, last, the shifted ones on the GPU of the loss.

    (loss/loss_utils.py: ForCausalLMLoss; liger_kernel/transformers/model/loss_utils.py.)
    """
    with tape.on(0):
        padded = tape.empty((batch, length + 1), "int64", "padded labels")
        shifted = padded.view(batch, length)  # one row is contiguous
        if batch > 1:
            shifted = tape.empty((batch, length), "int64", "shifted labels")
    return [padded, shifted, ops.move(shifted, tape.card, "labels on the card of the loss")]
