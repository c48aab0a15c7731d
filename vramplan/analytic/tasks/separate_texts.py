"""States of texts that share one row, told apart again (ms-swift 4.6, model/patcher.py: revert_padding_free)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor


def separate_texts(states: Tensor, rows: int) -> Tensor:
    """(1, rows x S, width) to (rows, S, width): a slice of each text, a copy of it with its padding, all stacked.

    A slice of the whole row, of one text alone, is the row itself. The copies live until all are stacked.
    """
    length = states.num_elements // (rows * states.shape[-1])
    row = states.view(rows * length, states.shape[-1])
    texts = []
    for _ in range(rows):
        text = ops.sliced(row, (length, row.shape[1])) if rows > 1 else row
        texts.append(ops.copy(text, "states of a text"))  # torch.cat with the padding
    return ops.stack(texts)
