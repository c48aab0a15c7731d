"""Indexing: rows gathered, scattered, split, joined and padded, mostly for images."""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.ops.base import high, new_like, output, promote
from vramplan.analytic.autograd.ops.elementwise import add
from vramplan.analytic.autograd.ops.shape import copy, sliced, views
from vramplan.units import DTYPE_BYTES


def add_rows(x: Tensor, more: Tensor) -> Tensor:
    """``x = x.clone(); x[mask] = x[mask] + more``."""
    x = copy(x, "copy to add image features to")
    picked = gathered(x, more.shape, "rows of images")
    return put_rows(x, add(picked, more, "features added"))


def gathered(x: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """``x[index]`` or ``x[mask]``: a copy; its gradient is a zeroed tensor of the full shape (index_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of an index", passes=2)]

    return output(tape.node((x,), backward), tape, shape, x.dtype, what)


def gather(x: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.gather(x, -1, index)``: saves the index and `x`, whose size gather_backward reads."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient scattered into zeros", passes=2)]

    node = tape.node((x,), backward)
    tape.save(node, x, index)
    out = output(node, tape, shape, x.dtype, "gathered scores")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``torch.where(mask, a, b)``: saves the mask; each gradient is a new tensor."""
    tape, likes = a.tape, [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else new_like(tape, like, "gradient where a mask is set") for like in likes]

    node = tape.node((a, b), backward)
    tape.save(node, mask)
    tape.work(0, 3 * a.num_bytes, a.dtype)
    return output(node, tape, a.shape, promote(a.dtype, b.dtype), "chosen by a mask")


def put_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x[mask] = rows`` in place; backward makes a gradient of `x` outside the rows and one of the rows."""
    tape = x.tape
    likes = [tensor.like if tensor.node is not None else None for tensor in (x, rows)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else new_like(tape, like, "gradient of an index", passes=2) for like in likes]

    tape.work(0, 2 * rows.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x, rows), backward))


def sum_middle(x: Tensor) -> Tensor:
    """``x.sum(1)`` of (N, M, ...); the gradient is expanded."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [Tensor(tape, grad.storage, like.shape, like.dtype, base=grad)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, (x.shape[0], *x.shape[2:]), x.dtype, "weighted positions")


def unbind(x: Tensor) -> list[Tensor]:
    """``x.permute(1, 0, ...).unbind(0)``: views of (N, 3, ...); their gradients are stacked, then permuted."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        stacked = new_like(tape, like, "stacked gradient", passes=2)
        ordered = new_like(tape, like, "gradient in order", passes=2)
        del stacked
        return [ordered]

    count, shape = x.shape[1], (x.shape[0], *x.shape[2:])
    node = tape.node((x,), backward, num_grads=count)
    return [Tensor(tape, x.storage, shape, x.dtype, node, index) for index in range(count)]


def pieces(x: Tensor) -> Tensor:
    """``torch.split(x, sizes)`` as one tensor that stands for all pieces."""
    return views(x, [x.shape])[0]


def split_rows(x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """``torch.split(x, lengths, dim=1)``."""
    return views(x, [(x.shape[0], length, *x.shape[2:]) for length in lengths])


def join_rows(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat(parts)`` along rows; the gradients are views of the incoming one."""
    tape, likes = parts[0].tape, [part.like for part in parts]

    def backward(grad: Tensor) -> Grads:
        return [grad.view(*like.shape) for like in likes]

    node = tape.node(tuple(parts), backward)
    out = output(node, tape, shape, parts[0].dtype, "joined pieces")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def split_first(x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """``torch.split(x, lengths)``."""
    return views(x, [(length, *x.shape[1:]) for length in lengths])


def cut(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[:, a:b]`` of an image; a plain view if nothing is cut off."""
    return x.view(*shape) if prod(shape) == x.num_elements else sliced(x, shape)


def pick_rows(x: Tensor) -> Tensor:
    """``x[index]``: rows in another order."""
    x.tape.work(0, 2 * x.num_bytes, x.dtype)
    return gathered(x, x.shape, "rows in another order")


def rows(x: Tensor, count: int) -> Tensor:
    """``x[:, i : i + count]``."""
    return sliced(x, (x.shape[0], count, *x.shape[2:]))


def pad_rows(x: Tensor, count: int) -> Tensor:
    """``F.pad`` of (N, M, ...) to `count` rows each: a copy; the gradient is sliced and copied."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient without padding", passes=2)]

    node = tape.node((x,), backward)
    out = output(node, tape, (x.shape[0], count, *x.shape[2:]), x.dtype, "padded patches")
    tape.work(0, x.num_bytes + out.num_bytes, x.dtype)
    return out


def repeat(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.repeat(...)`` to `shape`; the gradient is summed back."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [grad if prod(shape) == prod(like.shape) else new_like(tape, like, "gradient summed over copies")]

    node = tape.node((x,), backward)
    out = output(node, tape, shape, x.dtype, "copies")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def resize(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.interpolate(mode="bicubic")`` (fp32 under autocast): saves nothing."""
    x = high(x)
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through an interpolation")]

    node = tape.node((x,), backward)
    out = output(node, tape, shape, x.dtype, "interpolated")
    tape.work(0, x.num_bytes + out.num_bytes, x.dtype)
    return out


def join(a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.cat((a.expand(...), b), dim=1)``; the gradients are views, that of `a` is summed over the batch."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        if likes[0] is not None:
            grads[0] = new_like(tape, likes[0], "gradient summed over the batch")
        if likes[1] is not None:
            grads[1] = grad.view(*likes[1].shape)
        return grads

    node = tape.node((a, b), backward)
    out = output(node, tape, shape, promote(a.dtype, b.dtype), "concatenation")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def scatter_rows(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``x.masked_scatter(mask, source)``: saves the mask (derivatives.yaml: masked_fill, masked_scatter_backward).

    CUDA makes a prefix sum of the mask (cuda/IndexKernel.cpp: maskPrefixSum); the source's gradient is selected by the
    positions of all its elements (masked_select, nonzero of three dimensions).
    """
    tape = x.tape
    likes = [tensor.like if tensor.node is not None else None for tensor in (x, source)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        if likes[0] is not None:
            grads[0] = new_like(tape, likes[0], "gradient outside the images")
        if likes[1] is not None:
            count = prod(likes[1].shape)
            positions = tape.empty((count, len(grad.shape)), "int64", "positions of image features", "workspace")
            picked = new_like(tape, likes[1], "gradient of the image features")
            del positions
            grads[1] = picked.view(*likes[1].shape)
            del picked
        return grads

    node = tape.node((x, source), backward)
    tape.save(node, mask)
    out = output(node, tape, x.shape, x.dtype, "text with image features")
    workspace = [  # held until the kernel returns
        tape.empty(x.shape, "int64", "prefix sums of the image mask", "workspace"),
        tape.empty(x.shape, "bool", "image mask in full", "workspace"),
    ]
    tape.work(0, 2 * out.num_bytes + 18 * x.num_elements, x.dtype)
    del workspace
    return out


def pick(x: Tensor, size: int) -> Tensor:
    """``x[..., [i], :]``: a copy by index."""
    shape = (*x.shape[:-1], size)
    x.tape.work(0, 2 * prod(shape) * DTYPE_BYTES[x.dtype], x.dtype)
    return gathered(x, shape, "part copied out")
