"""The experts of a mixture as Liger computes them (liger-kernel 0.8.5, ops/fused_moe.py; LigerExperts).

Backward makes gradients of all experts' weights also if they are frozen. Tokens are taken to spread evenly over the
experts, which decides about some KiB of indices alone.
"""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.ops import fit
from vramplan.analytic.autograd.tape import Tape
from vramplan.units import DTYPE_BYTES, ceil_div

TILE_ROWS = 64
"""BLOCK_M_TOKEN."""
ROUTER_TOKENS = 1024
"""Rows of a block of the kernels that sort rows by expert."""


class Order(NamedTuple):
    """Rows by expert: indices that forward makes and saves."""

    starts: Tensor
    gather: Tensor
    scatter: Tensor
    reverse: Tensor
    tile_rows: Tensor
    tile_experts: Tensor


def order_rows(tape: Tape, tokens: int, top: int, number: int) -> Order:
    """compute_routing_metadata."""
    rows = tokens * top
    tiles = number * ceil_div(ceil_div(rows, number), TILE_ROWS)
    blocks = ceil_div(tokens, max(1, ROUTER_TOKENS >> (top - 1).bit_length()))
    counts = tape.empty((number, blocks), "int32", "experts of each block of tokens")
    totals = tape.empty((number,), "int32", "rows of each expert")
    starts, offsets = (tape.empty((number + 1,), "int32", what) for what in ("where experts begin", "their tiles"))
    tile_rows, tile_experts = (tape.empty((tiles,), "int32", "tiles of rows") for _ in range(2))
    scatter, reverse, gather = (tape.empty((rows,), "int32", "order of the rows") for _ in range(3))
    tape.work(0, 4 * 4 * rows, "fp32", launches=3)
    del counts, totals, offsets
    return Order(starts, gather, scatter, reverse, tile_rows, tile_experts)


def fused_experts(x: Tensor, into: Tensor, back: Tensor, shares: Tensor, top: int) -> Tensor:
    """LigerFusedMoEFunction: (tokens, width) in and out; saves gate and up of each row, not its output."""
    tape, dtype, (tokens, width) = x.tape, x.dtype, x.shape
    likes = [x.like, into.like, back.like, shares.like]
    number, wide, _ = into.shape
    rows, inner = tokens * top, wide // 2
    flops, size = 2 * rows * width * (wide + inner), DTYPE_BYTES[x.dtype]
    moved = into.num_bytes + back.num_bytes + rows * (2 * width + wide + 2 * inner) * size

    def backward(grad: Tensor) -> Grads:
        gate_up = tape.empty((rows, wide), grad.dtype, "gradient of gate and up")
        weighted = tape.empty((rows, inner), grad.dtype, "weighted product")
        of_shares = tape.empty((rows,), grad.dtype, "gradient of the shares")
        of_back = tape.empty(likes[2].shape, likes[2].dtype, "gradient of the experts")
        expanded = tape.empty((rows, width), grad.dtype, "gradient of the rows")
        of_x = tape.empty((tokens, width), grad.dtype, "gradient of the tokens")
        of_into = tape.empty(likes[1].shape, likes[1].dtype, "gradient of the experts")
        tape.product(2 * flops, 2 * moved, dtype, 2 * rows * (width + wide), launches=5)
        del gate_up, weighted, expanded
        return [of_x, of_into, of_back, fit(of_shares, likes[3])]

    node = tape.node((x, into, back, shares), backward)
    order = order_rows(tape, tokens, top, number)
    gate_up = tape.empty((rows, wide), dtype, "gate and up")
    product = tape.empty((rows, inner), dtype, "product")
    each = tape.empty((rows, width), dtype, "output of the experts")
    out = tape.empty((tokens, width), dtype, "output")
    tape.product(flops, moved, dtype, rows * (width + wide), launches=3)
    tape.save(node, order.tile_experts, order.tile_rows, order.reverse, order.scatter, order.gather, order.starts)
    tape.save(node, shares, gate_up, back, into, x)
    return Tensor(tape, out.storage, out.shape, dtype, node)
