"""Additions into a view of a tensor, or divisions of it, and what backward makes of them.

Mirrors torch 2.13, autograd/functions/tensor.cpp (CopySlices::apply), FunctionsManual.cpp (as_strided_backward).
"""

from __future__ import annotations

from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.autograd.ops.base import fit, new_like


def add_to_view(a: Tensor, b: Tensor) -> Tensor:
    """``a.permute(...)`` with ``+= b``, in the shape of `b`.

    Backward copies the gradient into one of `a` (as_strided_backward), that one into another, and the part that was
    viewed once more, which is the gradient of `b` (CopySlices).
    """
    tape, like = a.tape, a.like
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def of_view(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of a view's whole", passes=2)]

    def of_slices(grad: Tensor) -> Grads:
        whole = new_like(tape, like, "gradient of a view's whole", passes=2)
        part = new_like(tape, Like(b_shape, like.dtype), "gradient of a view", passes=2)
        return [None if likes[0] is None else whole, None if likes[1] is None else fit(part, likes[1])]

    b_shape = b.shape
    tape.work(0, 3 * a.num_bytes, a.dtype)
    summed = Tensor(tape, a.storage, a.shape, a.dtype, tape.node((a, b), of_slices))
    return Tensor(tape, a.storage, b_shape, a.dtype, tape.node((summed,), of_view))


def scale_reshaped(x: Tensor, *shape: int) -> Tensor:
    """``x.view(shape)`` with ``/= number``.

    Backward copies the gradient into one of `x`, the part that was viewed once more, and divides that into a third
    (CopySlices).
    """
    tape, like = x.tape, x.like

    def of_slices(grad: Tensor) -> Grads:
        whole = new_like(tape, like, "gradient of a view's whole", passes=2)
        part = new_like(tape, like, "gradient of a view", passes=2)
        quotient = new_like(tape, like, "gradient through a scaling", passes=2)
        del part, quotient
        return [whole]

    tape.work(0, 2 * x.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), of_slices)).view(*shape)


def add_to_rest(x: Tensor, more: Tensor) -> Tensor:
    """``x[1:] += more`` in Python: an addition into a view, then a copy of the view onto itself."""
    tape, like = x.tape, x.like
    rest = Like((like.shape[0] - 1, *like.shape[1:]), like.dtype)
    likes = [tensor.like if tensor.node is not None else None for tensor in (x, more)]

    def of_sum(grad: Tensor) -> Grads:
        whole = new_like(tape, like, "gradient of a view's whole", passes=2)
        part = new_like(tape, rest, "gradient of a view", passes=2)
        return [None if likes[0] is None else whole, None if likes[1] is None else fit(part, likes[1])]

    def of_view(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of a view's whole", passes=2)]

    def of_copy(grad: Tensor) -> Grads:
        whole = new_like(tape, like, "gradient of a view's whole", passes=2)
        part = new_like(tape, rest, "gradient of a view", passes=2)
        zeros = new_like(tape, rest, "gradient of what was copied onto", passes=2)
        del zeros
        return [whole, part]

    tape.work(0, 5 * x.num_bytes, x.dtype)
    summed = Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x, more), of_sum))
    view = Tensor(tape, x.storage, rest.shape, x.dtype, tape.node((summed,), of_view))
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((summed, view), of_copy))


def scale_slice(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[...].div_(number)`` of a slice with `shape`: the view, which takes no memory in forward.

    Backward copies the gradient of the view into one of `x` (as_strided_backward), that one into another, and the part
    that was viewed once more, which is divided into a fourth (CopySlices).
    """
    tape, like, viewed = x.tape, x.like, Like(shape, x.dtype)

    def of_view(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of a view's whole", passes=2)]

    def of_slices(grad: Tensor) -> Grads:
        whole = new_like(tape, like, "gradient of a view's whole", passes=2)
        part = new_like(tape, viewed, "gradient of a view", passes=2)
        scaled = new_like(tape, viewed, "gradient through a scaling", passes=2)
        del part, scaled
        return [whole]

    whole = Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), of_slices))
    view = Tensor(tape, x.storage, shape, x.dtype, tape.node((whole,), of_view))
    tape.work(0, 2 * view.num_bytes, x.dtype)
    return view
