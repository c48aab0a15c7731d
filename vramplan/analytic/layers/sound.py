"""Layers of models that read waveforms: convolutions over time, their norms, frames replaced in place.

Mirrors torch 2.13: Convolution.cpp (_convolution, convolution_backward), WeightNorm.cpp, group_norm.cpp.
"""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.step_time.kernels import MATMUL
from vramplan.units import DTYPE_BYTES


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], permuted: bool, permuted_grad: bool
) -> Tensor:
    """``F.conv1d`` of (B, C, T) with result `shape`: saves its input and the weight.

    `permuted`: the input has channels last in memory; the kernel works on a copy, so that it does not take NHWC
    kernels. `permuted_grad`: so has the gradient of the output.
    """
    bias = None if bias is None else ops.low(bias)
    weight, x = ops.low(weight), ops.low(x)
    tape, dtype = x.tape, x.dtype
    inputs = (x, weight) if bias is None else (x, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    whole, flops = x.like, 2 * prod(shape) * prod(weight.shape[1:])
    moved = x.num_bytes + weight.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        copies = [
            tape.empty(like, dtype, "copy with channels first", "workspace")
            for like, wanted in ((whole.shape, permuted), (shape, permuted_grad))
            if wanted
        ]
        grads: Grads = [None if like is None else tape.empty(like.shape, dtype, "gradient") for like in likes]
        for like in likes[:2]:
            if like is not None:
                tape.work(flops, moved, dtype, kind=MATMUL, results=prod(like.shape))
        del copies
        return grads

    node = tape.node(inputs, backward)
    del inputs
    tape.save(node, x, weight)
    copy = tape.empty(whole.shape, dtype, "copy with channels first", "workspace") if permuted else None
    tape.work(flops, moved, dtype, kind=MATMUL, results=prod(shape))
    out = ops.output(node, tape, shape, dtype, "convolution over time")
    del copy
    return out


def group_norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """``nn.GroupNorm`` with a group for each channel of (B, C, T) (fp32 under autocast): saves its input."""
    samples, channels, _ = x.shape
    net.tape.module = name
    weight, bias = net.parameter(f"{name}.weight", channels), net.parameter(f"{name}.bias", channels)
    inputs = tuple(ops.high(tensor) for tensor in (x, weight, bias))
    tape, x = net.tape, inputs[0]
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else ops.new_like(tape, like, "gradient through group norm") for like in likes]

    node = tape.node(inputs, backward)
    tape.save(node, *inputs)
    out = ops.output(node, tape, x.shape, x.dtype, "output")
    tape.work(0, 2 * x.num_bytes, x.dtype)
    for what in ("mean", "reciprocal deviation"):
        tape.save(node, tape.empty((samples, channels), x.dtype, what))
    return out


def weight_norm(direction: Tensor, length: Tensor) -> Tensor:
    """``torch._weight_norm(v, g, dim)`` over the last dimension: one kernel, except in fp16 (can_use_fused)."""
    tape, likes = direction.tape, [x.like if x.node is not None else None for x in (direction, length)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else ops.new_like(tape, like, "gradient through weight norm") for like in likes]

    node = tape.node((direction, length), backward)
    tape.work(0, 2 * direction.num_bytes, direction.dtype)
    out = ops.output(node, tape, direction.shape, direction.dtype, "normed weight")
    norms = tape.empty(length.shape, "fp32", "norms")
    tape.save(node, direction, length, norms)
    return out


def replaced(x: Tensor, mask: Tensor, value: Tensor | None, count: int) -> Tensor:
    """``x[mask] = value`` in place, for `count` rows of (B, T, width); a `value` of None is the number 0.

    Saves the mask; backward copies the gradient, and selects the rows for that of the value (index_put_).
    """
    tape, width = x.tape, x.shape[-1]
    inputs = (x,) if value is None else (x, value)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None] * len(likes)
        if likes[0] is not None:
            grads[0] = ops.new_like(tape, likes[0], "gradient outside of replaced frames", passes=2)
        if len(likes) > 1 and likes[1] is not None:
            rows = ops.new_like(tape, Like((count, width), likes[1].dtype), "gradient of replaced frames", passes=2)
            tape.applied()
            grads[1] = ops.fit(rows, likes[1])
        return grads

    node = tape.node(inputs, backward)
    tape.save(node, mask)
    tape.work(0, 2 * count * width * DTYPE_BYTES[x.dtype], x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, node)
