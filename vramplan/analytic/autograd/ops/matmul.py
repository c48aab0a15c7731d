"""Matrix products, convolutions, layer norm, embedding and other kernels with weights."""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd.graph import Grads, Like, StopRecompute, Tensor
from vramplan.analytic.autograd.ops.base import high, low, new_like, output, to
from vramplan.step_time.kernels import MATMUL
from vramplan.units import DTYPE_BYTES

MOST_UNSORTED = 3072
"""Largest number of ids that embedding_dense_backward does not sort first."""


def average(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.avg_pool2d``: saves its input."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through an average")]

    node = tape.node((x,), backward)
    tape.save(node, x)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, shape, x.dtype, "averaged patches")


def sampled(table: Tensor, grid: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.grid_sample``: saves both; backward makes a gradient of the grid in any case (cuda/GridSampler.cpp)."""
    tape, likes = table.tape, (table.like, grid.like)

    def backward(grad: Tensor) -> Grads:
        gradient = new_like(tape, likes[0], "gradient of a sampled table", passes=2)
        unused = new_like(tape, likes[1], "gradient of the points")
        del unused
        return [gradient]

    node = tape.node((table,), backward)
    tape.save(node, table, grid)
    out = output(node, tape, shape, table.dtype, "sampled table")
    tape.work(0, 16 * out.num_bytes, out.dtype)  # bicubic: 16 neighbours
    return out


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``torch.matmul(x, weight)`` with a weight (in, out)."""
    return matmul(
        x, weight, 2 * x.num_elements * weight.shape[-1], (*x.shape[:-1], weight.shape[-1]), "projected features"
    )


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, what: str = "output", category: str = "", cached: bool = True
) -> Tensor:
    """``F.linear``: (..., I) by (O, I). Saves the input if the weight trains, the weight if the input needs grad."""
    argument, tape = x, x.tape  # held until the function returns: the module's argument
    bias = None if bias is None else low(bias)  # autocast casts the last argument first (autocast_mode.h, by GCC)
    weight = low(weight) if cached else to(weight, tape.autocast or weight.dtype)
    x = low(argument)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    rows, (out_features, in_features) = prod(x.shape[:-1]), weight.shape
    flops = 2 * rows * in_features * out_features
    moved = (rows * (in_features + out_features) + in_features * out_features) * DTYPE_BYTES[x.dtype]
    dtype = x.dtype
    # gradients in the order of the generated formulas: mm's mat2, self; addmm's mat1, mat2, self
    # DeepSpeed's own linear (0.19, runtime/zero/linear.py) makes the input's first, none of them a view
    order = (1, 0) if bias is None and not tape.keeps_inputs else range(len(inputs))

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None] * len(likes)
        for index in order:
            like = likes[index]
            if like is None:
                continue
            if index == 2:  # the bias: the incoming gradient, summed over rows when outputs are fitted
                tape.applied()
                grads[index] = new_like(tape, like, "gradient", passes=1 + rows)
                tape.buffer("sum", (rows, out_features), dtype)
                continue
            tape.product(flops, moved, dtype, prod(like.shape))
            product = tape.empty(like.shape, dtype, "gradient of the input" if index == 0 else "gradient")
            # a view: of the input's three dimensions, or transposed for the weight; DeepSpeed's function makes none
            is_view = not tape.keeps_inputs and (index == 1 or len(like.shape) > 2)
            grads[index] = product.view(*like.shape) if is_view else product
            del product
        return grads

    def multiplied() -> Tensor:
        tape.product(flops, moved, dtype, rows * out_features)
        return output(node, tape, (*x.shape[:-1], out_features), dtype, what, category)

    def save() -> None:
        if weight.node is not None or tape.keeps_inputs:
            tape.save(node, x)
        if x.node is not None:
            tape.save(node, weight)

    node = tape.node(inputs, backward)
    del inputs
    if not tape.keeps_inputs:
        save()
        return multiplied()
    product, kernels = multiplied(), len(tape.kernels)  # DeepSpeed's function saves when it has run
    try:
        save()
    except StopRecompute:
        del tape.kernels[kernels - 1 :]  # rates are learned without the product that ends a recomputation
        raise
    return product


def joint_projection(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Keys and values of (B, S, W) by one product, copied to (2, S, B, W) (_in_projection_packed).

    The input is a transposed view: ``at::matmul`` folds it into rows, a copy that is saved, if the weight needs a
    gradient, and multiplies sample by sample otherwise (LinearAlgebra.cpp: should_fold).
    """
    bias, weight, x = low(bias), low(weight), low(x)
    tape, dtype = x.tape, x.dtype
    inputs = (x, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    (samples, length, width), out_features = x.shape, weight.shape[0]
    flops, outer = 2 * samples * length * width * out_features, (length, samples, out_features)
    moved = x.num_bytes + weight.num_bytes + prod(outer) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        ordered = new_like(tape, Like(outer, dtype), "gradient in order", passes=2)
        grads: Grads = [None, None, None]
        for index in (2, 1, 0):
            like = likes[index]
            if like is not None:
                tape.product(flops if index < 2 else 0, moved, dtype, prod(like.shape))
                grads[index] = tape.empty(like.shape, dtype, "gradient").view(*like.shape)
        del ordered
        return grads

    folds = likes[1] is not None and samples > 1
    node = tape.node(inputs, backward)
    rows = copy_of(x, "patches in rows") if folds else x
    if likes[1] is not None:
        tape.save(node, rows)
    if likes[0] is not None:
        tape.save(node, weight)
    del rows
    product = tape.empty(outer, dtype, "keys and values")
    tape.product(flops, moved, dtype, prod(outer))
    shifted = tape.empty(outer, dtype, "keys and values")
    del product, x
    out = output(node, tape, (2, length, samples, out_features // 2), dtype, "keys and values apart")
    tape.work(0, 2 * out.num_bytes, dtype)
    del shifted
    return out


def copy_of(x: Tensor, what: str) -> Tensor:
    """A copy without an autograd node."""
    return x.tape.empty(x.shape, x.dtype, what)


def patches(
    pixels: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], transposed: bool = False
) -> Tensor:
    """A convolution with stride equal to its kernel, as (tiles, patches, width). Saves input and weight.

    `transposed`: channels come last, so that backward copies the gradient, and sums it over rows for the bias
    (Convolution.cpp: convolution_backward).
    """
    bias = None if bias is None else low(bias)
    weight = low(weight)
    pixels = low(pixels)
    tape, dtype = pixels.tape, pixels.dtype
    inputs = (pixels, weight) if bias is None else (pixels, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    flops, weight_rows = 2 * prod(shape) * prod(weight.shape[1:]), weight.shape[0]
    moved = pixels.num_bytes + weight.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        ordered = tape.empty(shape, dtype, "gradient with channels first", "workspace") if transposed else None
        grads: Grads = [None if like is None else tape.empty(like.shape, dtype, "gradient") for like in likes[:2]]
        del ordered
        for like in likes[:2]:
            if like is not None:
                tape.work(flops, moved, dtype, kind=MATMUL, results=prod(like.shape))
        for like in likes[2:]:
            grads.append(None if like is None else tape.empty(like.shape, dtype, "gradient"))
            if like is not None and transposed:
                tape.buffer("sum", (prod(shape) // weight_rows, weight_rows), dtype)
        return grads

    node = tape.node(inputs, backward)
    del inputs
    tape.save(node, pixels, weight)
    tape.work(flops, moved, dtype, kind=MATMUL, results=prod(shape))  # cuDNN's, without cuBLAS
    out = output(node, tape, shape, dtype, "patches")
    return out.view(*shape)  # flattened and transposed


def matmul(a: Tensor, b: Tensor, flops: int, shape: tuple[int, ...], what: str, scaled: bool = False) -> Tensor:
    """A batched product of two activations with result `shape`; `scaled`: times a number (baddbmm's alpha)."""
    b, a = low(b), low(a)
    tape, dtype = a.tape, a.dtype
    likes = [x.like if x.node is not None else None for x in (a, b)]
    moved = a.num_bytes + b.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        for index in (1, 0):  # bmm's mat2, self
            like = likes[index]
            if like is None:
                continue
            tape.product(flops, moved, dtype, prod(like.shape))
            product = tape.empty(like.shape, dtype, "gradient of a batched product")
            if scaled:
                product = new_like(tape, Like(like.shape, dtype), "scaled gradient of a batched product")
            grads[index] = product.view(*like.shape)  # a view: three dimensions to four
            del product
        return grads

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    tape.product(flops, moved, dtype, prod(shape))
    return output(node, tape, shape, dtype, what)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``F.layer_norm`` (fp32 under autocast). Saves the input and fp32 mean and reciprocal deviation per row."""
    x = high(x)
    weight, bias = (None if p is None else high(p) for p in (weight, bias))
    tape, rows = x.tape, prod(x.shape[:-1])
    inputs = tuple(tensor for tensor in (x, weight, bias) if tensor is not None)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else new_like(tape, like, "gradient through layer norm") for like in likes]

    node = tape.node(inputs, backward)
    tape.save(node, *(tensor for tensor in (x, weight, bias) if tensor is not None))
    out = output(node, tape, x.shape, x.dtype, "output")
    tape.work(0, 2 * x.num_bytes, x.dtype)
    for what in ("mean", "reciprocal deviation"):
        tape.save(node, tape.empty((rows,), "fp32", what))
    return out


def embedding(ids: Tensor, weight: Tensor, what: str = "output", sorts: bool = False, permuted: bool = False) -> Tensor:
    """``F.embedding``: saves the ids; the weight's gradient is dense.

    `sorts`: include the workspace that backward sorts ids in, which matters for millions of ids (Embedding.cu).
    `permuted`: the gradient comes permuted, so that backward makes it contiguous.
    """
    tape, like, count = weight.tape, weight.like, ids.num_elements

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * grad.num_bytes, like.dtype)
        contiguous = new_like(tape, grad.like, "gradient made contiguous") if permuted else None
        grads: Grads = [new_like(tape, like, "gradient", passes=1)]
        tape.buffer("embedding", (count, *like.shape), like.dtype)
        if sorts and count > MOST_UNSORTED:
            workspace = tape.empty((2, count), "int64", "sorted indices", "workspace")
            del workspace
        del contiguous
        return grads

    node = tape.node((weight,), backward)
    tape.save(node, ids)
    shape = (*ids.shape, weight.shape[1])
    tape.work(0, 2 * prod(shape) * DTYPE_BYTES[weight.dtype], weight.dtype)
    return output(node, tape, shape, weight.dtype, what)
