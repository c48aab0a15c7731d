"""Ops of mixtures of experts (MoE): rows by index, top-k, grouped products, adapters added to expert weights."""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.autograd.ops.base import fit, new_like, output, to
from vramplan.units import DTYPE_BYTES


def chosen(x: Tensor, index: Tensor, shape: tuple[int, ...], what: str, widened: bool = False) -> Tensor:
    """``x[index]``: saves the index; its gradient is added into zeros (index_backward).

    `widened`: ``x[None, index]`` or ``x[index, None]``, whose gradient is a view with one dimension more.
    """
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        gradient = new_like(tape, like, f"gradient of {what}", passes=2)
        return [gradient.view(*like.shape) if widened else gradient]

    node = tape.node((x,), backward)
    tape.save(node, index)
    out = output(node, tape, shape, x.dtype, what)
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def added_at(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """``x.index_add_(0, index, rows)`` in place; saves the index, and the rows for their shape (derivatives.yaml)."""
    tape, like, passes = x.tape, rows.like, x.node is not None

    def backward(grad: Tensor) -> Grads:
        return [grad if passes else None, new_like(tape, like, "gradient of rows that were added", passes=2)]

    node = tape.node((x, rows), backward)
    tape.save(node, index, rows)
    tape.work(0, 3 * rows.num_bytes, rows.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, node)


def top(x: Tensor, count: int, what: str) -> tuple[Tensor, Tensor]:
    """``torch.topk(x, count)``: values and indices, which are saved (value_selecting_reduction_backward)."""
    tape, like, shape = x.tape, x.like, (*x.shape[:-1], count)

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, f"gradient of {what}", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    values = output(node, tape, shape, x.dtype, what)
    index = tape.empty(shape, "int64", f"which are {what}")
    tape.save(node, index)
    return values, index


def scattered(values: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.full_like(...).scatter_(1, index, values)``: saves the index; the gradient is gathered."""
    tape, like = values.tape, values.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of what was scattered", passes=2)]

    node = tape.node((values,), backward)
    tape.save(node, index)
    out = output(node, tape, shape, values.dtype, "scattered values")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def divide_in_place(x: Tensor, by: Tensor) -> Tensor:
    """``x /= by`` with one divisor for each row: saves it and a copy of the old `x`."""
    tape, likes = x.tape, (x.like, by.like)

    def backward(grad: Tensor) -> Grads:
        quotients = [new_like(tape, likes[0], "temporary of the backward of a division") for _ in range(3)]
        of_divisor = new_like(tape, likes[0], "gradient of the divisor")
        del quotients
        of_dividend = new_like(tape, likes[0], "gradient of a division")
        return [of_dividend, fit(of_divisor, likes[1])]

    node = tape.node((x, by), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    tape.save(node, by)
    if node is not None:
        tape.save(node, tape.empty(x.shape, x.dtype, "what was divided"))
    return Tensor(tape, x.storage, x.shape, x.dtype, node)


def sum_groups(x: Tensor, size: int) -> Tensor:
    """``x.view(-1, size, width).sum(1)`` (fp32 under autocast); the gradient is copied to all rows of a group.

    It is a copy because the view, or the cast back, makes the expanded gradient contiguous (FunctionsManual.cpp).
    """
    tape, like, (rows, width) = x.tape, x.like, x.shape
    dtype = "fp32" if tape.autocast else x.dtype  # the kernel casts as it reads: no fp32 copy

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient copied to all experts of a token", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, (rows // size, width), dtype, "sum over a token's experts")


def grouped(x: Tensor, weight: Tensor, offsets: Tensor, out_features: int, what: str) -> Tensor:
    """``F.grouped_mm``: rows in groups, each group times its matrix of `weight`; autocast does not cast its inputs.

    `offsets` are the ends of the groups: their sizes change no shape and not the total work. (torch 2.13,
    derivatives.yaml: _grouped_mm; transformers 5.23, integrations/moe.py: _grouped_mm casts the rows.)
    """
    x = to(x, weight.dtype, "rows in the experts' dtype")
    tape, dtype, (rows, in_features) = x.tape, x.dtype, x.shape
    likes = [tensor.like if tensor.node is not None else None for tensor in (x, weight)]
    flops = 2 * rows * in_features * out_features
    moved = rows * (in_features + out_features) * DTYPE_BYTES[dtype] + weight.num_bytes

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        for index in (1, 0):
            like = likes[index]
            if like is not None:
                tape.product(flops, moved, dtype, prod(like.shape))
                grads[index] = tape.empty(like.shape, dtype, "gradient" if index else "gradient of the rows")
        return grads

    node = tape.node((x, weight), backward)
    if weight.node is not None:
        tape.save(node, x)
    if x.node is not None:
        tape.save(node, weight)
    tape.save(node, offsets)
    tape.product(flops, moved, dtype, rows * out_features)
    return output(node, tape, (rows, out_features), dtype, what)


def folded(weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``torch.baddbmm(weight, up, down, alpha=scaling)`` without autocast: all experts' weight plus its adapter."""
    tape, dtype, (experts, out_features, in_features) = weight.tape, weight.dtype, weight.shape
    likes = [tensor.like if tensor.node is not None else None for tensor in (weight, up, down)]
    flops = 2 * experts * out_features * in_features * min(up.shape[1:])
    moved = weight.num_bytes + up.num_bytes + down.num_bytes

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None if likes[0] is None else grad, None, None]
        for index in (1, 2):
            like = likes[index]
            if like is not None:
                tape.product(flops, moved, dtype, prod(like.shape))
                product = new_like(tape, like, "gradient of a folded adapter")
                grads[index] = new_like(tape, like, "scaled gradient of a folded adapter")
                del product
        return grads

    node = tape.node((weight, up, down), backward)
    if down.node is not None:
        tape.save(node, up)
    if up.node is not None:
        tape.save(node, down)
    tape.product(flops, 2 * moved, dtype, weight.num_elements)
    return output(node, tape, weight.shape, dtype, "weights of all experts with their adapter")


def written(plain: Tensor, rotated: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A new tensor with `plain`, then the one head of `rotated` for all heads, copied into its last dimension.

    The backward of each copy clones the full gradient (torch/csrc/autograd/functions/tensor.cpp: CopySlices::apply).
    """
    tape, like, dtype = plain.tape, rotated.like, plain.dtype
    parts = [Like((*shape[:-1], part.shape[-1]), dtype) for part in (plain, rotated)]

    def summed(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient summed over heads")]

    def first(grad: Tensor) -> Grads:
        base = new_like(tape, Like(shape, dtype), "gradient of a tensor copied into")
        gradient = new_like(tape, parts[0], "gradient of what was copied in")
        del base
        return [gradient]

    def second(grad: Tensor) -> Grads:
        base = new_like(tape, Like(shape, dtype), "gradient of a tensor copied into")
        return [base, new_like(tape, parts[1], "gradient of what was copied in")]

    for_all = Tensor(tape, rotated.storage, parts[1].shape, dtype, tape.node((rotated,), summed))
    out = tape.empty(shape, dtype, "concatenation")
    tape.work(0, 2 * out.num_bytes, dtype)
    out.node = tape.node((plain,), first)
    out.node = tape.node((out, for_all), second)
    return out


def reordered(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.reshape(...).permute(...)``: a view; its gradient is copied back into the parameter's order."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient in the parameter's order", passes=2)]

    return Tensor(tape, x.storage, shape, x.dtype, tape.node((x,), backward))
