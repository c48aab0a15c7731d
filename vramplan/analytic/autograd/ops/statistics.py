"""Deviations, quotients and stacks."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.ops.base import _broadcast, fit, new_like, output, pointwise, promote, to


def sqrt(x: Tensor) -> Tensor:
    """``torch.sqrt(x)``: saves its result; backward: grad / (2 * result)."""
    return pointwise(x, "square root", saves_output=True, scratch=1)


def divide(a: Tensor, b: Tensor, what: str = "quotient") -> Tensor:
    """``a / b``: saves `b`, and `a` if `b` needs a gradient, -grad * ((a / b) / b), which has three temporaries."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        of_divisor = of_dividend = None
        if likes[1] is not None:
            quotients = [new_like(tape, grad.like, "temporary of the backward of a division") for _ in range(3)]
            of_divisor = new_like(tape, grad.like, "gradient of the divisor")
            del quotients
        if likes[0] is not None:
            of_dividend = new_like(tape, grad.like, "gradient of a division")
        tape.applied()
        grads: Grads = [None, None]
        if likes[0] is not None and of_dividend is not None:
            grads[0] = fit(of_dividend, likes[0])
            del of_dividend
        if likes[1] is not None and of_divisor is not None:
            grads[1] = fit(of_divisor, likes[1])
        return grads

    node = tape.node((a, b), backward)
    tape.save(node, b)
    if b.node is not None:
        tape.save(node, a)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def deviation(x: Tensor) -> Tensor:
    """``torch.std(x, -1, keepdim=True, unbiased=False)``: saves input and result.

    var_backward: 2 / n * grad * (x - x.mean()), with a temporary as large as `x`.
    """
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        difference = new_like(tape, like, "difference from the mean")
        gradient = new_like(tape, like, "gradient through a deviation")
        del difference
        return [gradient]

    node = tape.node((x,), backward)
    tape.save(node, x)
    tape.work(0, x.num_bytes, x.dtype)
    out = output(node, tape, (*x.shape[:-1], 1), x.dtype, "deviation")
    tape.save(node, out)
    return out


def stack(parts: Sequence[Tensor]) -> Tensor:
    """``torch.stack(parts)``, under autocast in the widest of their dtypes; gradients are views of the incoming one."""
    tape, dtype = parts[0].tape, parts[0].dtype
    for one in parts[1:]:
        dtype = promote(dtype, one.dtype)
    wide = [to(one, dtype) for one in parts]
    likes = [one.like if one.node is not None else None for one in wide]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else grad.view(*like.shape) for like in likes]

    node = tape.node(tuple(wide), backward)
    out = output(node, tape, (len(wide), *wide[0].shape), dtype, "stacked")
    tape.work(0, 2 * out.num_bytes, dtype)
    return out
