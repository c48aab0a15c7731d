"""Attention masks as transformers builds them: booleans that are combined one by one (masking_utils.py, 5.23)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape


class MaskParts(NamedTuple):
    """What a mask is made of, besides causality."""

    causal: bool = True
    window: bool = False
    """Tokens attend to near ones only."""
    blocks: bool = False
    """Tokens of one image attend to each other (``blockwise_overlay``)."""
    packed: bool = False
    """Samples of one row do not attend to each other; each row has positions of its own."""
    padded: bool = False
    """The batch has a 2D attention mask, with padding or of ones only."""
    chunked: bool = False
    """`window` is a chunk that a token attends in, counted from each row's first token (``chunked_overlay``)."""


def attention_mask(
    tape: Tape, batch: int, length: int, dtype: str, parts: MaskParts, queries: int | None = None
) -> Tensor:
    """``sdpa_mask`` if `dtype` is bool, else ``eager_mask``: (B, 1, queries, S), a view if it is one for all rows.

    `queries`: their number, if it differs from that of keys.
    """
    shape = batch, 1, queries or length, length
    mask = _boolean(tape, shape, parts)
    if dtype == "bool":
        return Tensor(tape, mask.storage, shape, "bool")
    return tape.empty(shape, dtype, "additive causal mask" if parts.causal else "additive mask")


def _boolean(tape: Tape, shape: tuple[int, ...], parts: MaskParts) -> Tensor:
    batch, _, queries, keys = shape
    rows = batch if parts.packed else 1  # ``remap_positions_for_packed_sequence``: positions of each row

    def compared(*shape: int) -> Tensor:
        return tape.empty(shape, "bool", "causal mask" if parts.causal else "mask")

    def near() -> Tensor:
        if parts.causal:
            return compared(batch if parts.chunked else rows, 1, queries, keys)
        distance = tape.empty((1, 1, queries, keys), "int64", "distance of tokens")
        distance = tape.empty((1, 1, queries, keys), "int64", "distance of tokens")  # abs
        return compared(*distance.shape)

    own = (rows, 1, queries, keys) if parts.causal else (1, 1, queries, 1)
    function: Callable[[], Tensor] = partial(compared, *own)
    if parts.window:
        function = partial(_combined, tape, near, function)
    if parts.packed:
        function = partial(_combined, tape, partial(compared, batch, 1, queries, keys), function)
    if parts.blocks:
        function = partial(_combined, tape, function, partial(compared, batch, 1, queries, keys))
    if parts.padded:
        function = partial(_combined, tape, function, partial(compared, batch, 1, 1, keys))
    return function()


def _combined(tape: Tape, *functions: Callable[[], Tensor]) -> Tensor:
    """``and_masks``, ``or_masks``: a new tensor for each of the masks, of which only the last is kept."""
    result = tape.empty((1, 1, 1, 1), "bool", "mask")
    for function in functions:
        mask = function()
        shape = tuple(max(pair) for pair in zip(result.shape, mask.shape, strict=True))
        combined = tape.empty(shape, "bool", "mask")
        del mask
        result = combined
        del combined
    return result
