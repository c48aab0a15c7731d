"""torchao's NF4: stored form of its weights, and their matrix product (torchao 0.14.1, dtypes/nf4tensor.py)."""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd.graph import Grads, Parameter, Stored, Tensor
from vramplan.analytic.autograd.ops.base import output
from vramplan.analytic.autograd.tape import Tape
from vramplan.units import DTYPE_BYTES

TORCHAO_NF4 = "nf4-torchao"
"""Name of the stored form."""
BLOCK, BLOCK_OF_BLOCKS = 64, 256
"""Weights that share a scale, and scales that share a factor (to_nf4)."""


def stored_by_torchao(shape: tuple[int, ...], dtype: str) -> Stored:
    """The tensors of a weight that computes in `dtype`; each weight has its own table of levels."""
    count, size = prod(shape), DTYPE_BYTES[dtype]
    scales = count // BLOCK
    return (
        ("", count // 2, f"{count:,} / 2 bytes"),
        ("scales", scales, f"{scales} int8"),
        ("factors of scales", scales // BLOCK_OF_BLOCKS * size, f"{scales // BLOCK_OF_BLOCKS} {dtype}"),
        ("mean of scales", size, dtype),
        ("16 levels", 16 * size, f"16 {dtype}"),
    )


NUM_SHARDED = 3
"""Tensors of a weight that FSDP shards, the first of them (fsdp_pre_all_gather)."""


def sharded_bytes(stored: Stored) -> int:
    """Bytes of a weight that FSDP shards."""
    return sum(num_bytes for _, num_bytes, _ in stored[:NUM_SHARDED])


def unpacked_by_torchao(weight: Parameter) -> Tensor:
    """``get_original_weight``: indices of both halves are 64-bit integers, and all that it makes lives to its end."""
    tape, dtype = weight.tape, weight.dtype
    half, scales = weight.num_elements // 2, weight.num_elements // BLOCK
    first, second = _indices(tape, half), _indices(tape, half)
    levels = [_made(tape, half, dtype, "levels", 10) for _ in range(2)]
    divided = _made(tape, scales, dtype, "scales", 3)
    factors = _made(tape, scales, dtype, "scales", 4)
    del divided
    scaled: list[Tensor] = []
    for _ in range(2):
        repeated = _made(tape, half, dtype, "scales of each weight", 4)
        scaled.append(_made(tape, half, dtype, "scaled levels", 6))
        del repeated
    dense = tape.empty(weight.shape, dtype, "unpacked weight", "temporary")
    tape.work(0, 2 * dense.num_bytes, dtype)
    del first, second, levels, factors, scaled
    return dense


def _indices(tape: Tape, count: int) -> Tensor:
    """Four bits of each byte as 64-bit integers."""
    bits = _made(tape, count, "uint8", "bits of a weight", 2)
    indices = _made(tape, count, "int64", "64-bit indices of levels", 9)
    del bits
    return indices


def _made(tape: Tape, count: int, dtype: str, what: str, moved_bytes: int) -> Tensor:
    """A temporary whose kernel moves so many bytes for each element."""
    tape.work(0, moved_bytes * count, dtype)
    return tape.empty((count,), dtype, what, "temporary")


def linear_by_torchao(x: Tensor, weight: Parameter) -> Tensor:
    """LinearNF4: the weight is unpacked for the product, forward and backward; it is saved when the output is there."""
    tape, like, dtype, (out_features, in_features) = x.tape, x.like, weight.dtype, weight.shape
    rows = prod(x.shape[:-1])
    flops = 2 * rows * out_features * in_features
    moved = (rows * (in_features + out_features) + weight.num_elements) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        dense = unpacked_by_torchao(weight)
        tape.product(flops, moved, dtype, rows * in_features)
        gradient = tape.empty(like.shape, dtype, "gradient of the input")
        del dense
        return [gradient]

    node = tape.node((x,), backward)
    dense = unpacked_by_torchao(weight)
    tape.product(flops, moved, dtype, rows * out_features)
    out = output(node, tape, (*x.shape[:-1], out_features), dtype, "base output")
    del dense
    tape.save(node, weight)
    return out
