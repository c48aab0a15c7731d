"""Ops of linear attention and state spaces: convolutions over time, cumulative sums, chunks, triangular systems."""

from __future__ import annotations

from functools import reduce
from math import prod

from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.ops.base import fit, high, low, new_like, output, pointwise, promote
from vramplan.step_time.kernels import MATMUL
from vramplan.units import DTYPE_BYTES


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
    """``F.conv1d(x, weight, bias, padding, groups=channels)`` of (B, C, S), `length` long: saves input and weight.

    The weight is a view, whose cast autocast does not cache.
    """
    bias, weight, x = None if bias is None else low(bias), _uncached(weight), low(x)
    tape, dtype = x.tape, x.dtype
    inputs = (x, weight) if bias is None else (x, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    shape = (*x.shape[:-1], length)
    flops, moved = 2 * prod(shape) * weight.shape[-1], x.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = []
        for number, like in enumerate(likes):
            if like is not None and number < 2:
                tape.work(flops, moved, dtype, kind=MATMUL, results=prod(like.shape))
            grads.append(None if like is None else tape.empty(like.shape, dtype, "gradient"))
        return grads

    node = tape.node(inputs, backward)
    del inputs
    tape.save(node, x, weight)
    tape.work(flops, moved, dtype, kind=MATMUL, results=prod(shape))
    return output(node, tape, shape, dtype, "convolution over time")


def _uncached(weight: Tensor) -> Tensor:
    return low(weight.view(*weight.shape))


def softplus(x: Tensor) -> Tensor:
    """``F.softplus(x)`` (fp32 under autocast)."""
    return pointwise(high(x), "softplus", saves_input=True)


def cumulative(x: Tensor) -> Tensor:
    """``x.cumsum(dim)`` (fp32 under autocast): backward flips, sums and flips again (cumsum_backward)."""
    x = high(x)
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        flipped = new_like(tape, like, "flipped gradient", passes=2)
        summed = new_like(tape, like, "cumulative sum of a gradient", passes=2)
        del flipped
        result = new_like(tape, like, "gradient through a cumulative sum", passes=2)
        del summed
        return [result]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, "cumulative sum")


def solved(system: Tensor, right: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular(system, right)``: saves the system and the result.

    Backward solves again; the system's gradient is a product, negated, of which the triangle is taken
    (FunctionsManual.cpp: linalg_solve_triangular_backward).
    """
    tape, dtype = right.tape, right.dtype
    likes = [x.like if x.node is not None else None for x in (system, right)]
    whole = right.like
    flops = 2 * right.num_elements * system.shape[-1]

    def backward(grad: Tensor) -> Grads:
        of_right = tape.empty(whole.shape, dtype, "gradient of the right side of a triangular system")
        tape.work(0, 3 * grad.num_bytes, dtype)
        if likes[0] is None:
            return [None, of_right]
        tape.product(flops, 3 * grad.num_bytes, dtype, prod(likes[0].shape))
        product = tape.empty(likes[0].shape, dtype, "gradient of a triangular system")
        negated = new_like(tape, likes[0], "negated gradient", passes=2)
        del product
        triangle = new_like(tape, likes[0], "triangle of a gradient", passes=2)
        del negated
        return [triangle, None if likes[1] is None else of_right]

    node = tape.node((system, right), backward)
    tape.save(node, system)
    tape.work(0, system.num_bytes + 2 * right.num_bytes, dtype)  # torch's counter leaves these FLOPs out
    out = output(node, tape, right.shape, dtype, "solution of a triangular system")
    tape.save(node, out)
    return out


def assigned(whole: Tensor, part: Tensor) -> Tensor:
    """``whole[:, i] = part``: the gradient of `whole` is cloned, and the part of it again.

    (torch/csrc/autograd/functions/tensor.cpp: CopySlices::apply; the first time `whole` itself needs no gradient.)
    """
    tape, of_whole, of_part, before = whole.tape, whole.like, part.like, whole.node is not None

    def backward(grad: Tensor) -> Grads:
        rest = new_like(tape, of_whole, "gradient of a tensor copied into", passes=2)
        gradient = new_like(tape, of_part, "gradient of what was copied in", passes=2)
        if not before:
            return [None, gradient]
        zeros = new_like(tape, of_part, "zeros where a part was copied in", passes=1)
        del zeros
        return [rest, gradient]

    tape.work(0, 2 * part.num_bytes, part.dtype)
    return Tensor(tape, whole.storage, whole.shape, whole.dtype, tape.node((whole, part), backward))


def padded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.pad`` to `shape`: a copy, also if nothing is added; so is the gradient (constant_pad_nd_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient without padding", passes=2)]

    node = tape.node((x,), backward)
    out = output(node, tape, shape, x.dtype, "padded to whole chunks")
    tape.work(0, x.num_bytes + out.num_bytes, x.dtype)
    return out


def permuted(x: Tensor) -> Tensor:
    """``x.permute(...)``: a view, whose gradient is copied into the order of `x` by a reshape before it."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient in order", passes=2)]

    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def spread(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.expand(shape)``: a view, whose gradient is summed."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "sum of a broadcast gradient", passes=1)]

    return Tensor(tape, x.storage, shape, x.dtype, tape.node((x,), backward))


def joined(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat(parts)``; the gradient of each part that needs one is a view."""
    tape, likes = parts[0].tape, [part.like if part.node is not None else None for part in parts]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else fit(grad.view(*like.shape), like) for like in likes]

    node = tape.node(tuple(parts), backward)
    dtype = reduce(promote, (part.dtype for part in parts))
    out = output(node, tape, shape, dtype, "concatenation")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out
