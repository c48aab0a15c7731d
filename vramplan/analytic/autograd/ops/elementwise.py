"""Elementwise ops, sums and norms."""

from __future__ import annotations

from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.autograd.ops.base import _broadcast, fit, high, new_like, output, pointwise, promote


def add(a: Tensor, b: Tensor, what: str = "sum") -> Tensor:
    """``a + b``. Saves nothing; both inputs get the same gradient tensor if shape and dtype allow."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else fit(grad, like) for like in likes]

    node = tape.node((a, b), backward)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def subtract(a: Tensor, b: Tensor, what: str = "difference") -> Tensor:
    """``a - b``. Saves nothing; the second gradient is negated first."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None if likes[0] is None else fit(grad, likes[0]), None]
        if likes[1] is not None:
            grads[1] = fit(new_like(tape, grad.like, "negated gradient", passes=2), likes[1])
        return grads

    node = tape.node((a, b), backward)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """``a += b``: no new storage; both get the incoming gradient."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else fit(grad, like) for like in likes]

    tape.work(0, 3 * a.num_bytes, a.dtype)
    return Tensor(tape, a.storage, a.shape, a.dtype, tape.node((a, b), backward))


def _of_factors(grad: Tensor, likes: list[Like | None]) -> Grads:
    """Gradients of the factors of a product; None for a factor that needs none."""
    tape = grad.tape
    full = [  # MulBackward0 computes the gradients in the order of their names: `other`, then `self`
        None if like is None else new_like(tape, grad.like, "gradient of a product") for like in reversed(likes)
    ][::-1]
    tape.applied()
    for index, like in enumerate(likes):
        if like is not None and (gradient := full[index]) is not None:
            full[index] = fit(gradient, like)
            del gradient
    return full


def mul(a: Tensor, b: Tensor, what: str = "product") -> Tensor:
    """``a * b``. Saves each operand if the other one needs a gradient."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    node = tape.node((a, b), lambda grad: _of_factors(grad, likes))
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def mul_in_place(a: Tensor, b: Tensor, viewed: bool) -> Tensor:
    """``a *= b``: saves `b`, and a copy of the old `a` if `b` needs a gradient.

    `viewed`: `a` is a view; its gradient is copied into a gradient of its base, which is copied again (CopySlices,
    as_strided_backward).
    """
    tape, shape = a.tape, a.like
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        base = [new_like(tape, shape, "gradient of a view's whole", passes=2) for _ in range(2 * viewed)]
        full = _of_factors(grad, likes)
        if viewed and likes[0] is not None:
            full[0] = base[0]
        return full

    def of_view(grad: Tensor) -> Grads:
        return [new_like(tape, shape, "gradient of a view", passes=2)]

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, tape.empty(a.shape, a.dtype, "what was multiplied"))
    if a.node is not None:
        tape.save(node, b)
    tape.work(0, 2 * a.num_bytes + b.num_bytes, a.dtype)
    out = Tensor(tape, a.storage, a.shape, a.dtype, node)
    return Tensor(tape, a.storage, a.shape, a.dtype, tape.node((out,), of_view)) if viewed else out


def scale(x: Tensor, what: str = "scaled copy") -> Tensor:
    """``x * number`` or ``x / number``: saves nothing."""
    return pointwise(x, what)


def scale_in_place(x: Tensor) -> Tensor:
    """``x /= number``: no new storage in forward."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through a scaling")]

    tape.work(0, 2 * x.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def shift(x: Tensor, what: str = "shifted copy") -> Tensor:
    """``x + number``: saves nothing; its gradient is the incoming one."""
    tape = x.tape

    def backward(grad: Tensor) -> Grads:
        return [grad]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, what)


def neg(x: Tensor) -> Tensor:
    """``-x``."""
    return pointwise(x, "negated half")


def square(x: Tensor) -> Tensor:
    """``x.pow(2)`` (fp32 under autocast). Its derivative, grad * (2 * x.pow(1)), has two temporaries."""
    return pointwise(high(x), "square", saves_input=True, scratch=2)


def cube(x: Tensor) -> Tensor:
    """``x.pow(3)`` (fp32 under autocast)."""
    return pointwise(high(x), "cube", saves_input=True, scratch=2)


def rsqrt(x: Tensor) -> Tensor:
    """``torch.rsqrt(x)`` (fp32 under autocast); -0.5 * grad * result.pow(3) has two temporaries."""
    return pointwise(high(x), "reciprocal root", saves_output=True, scratch=2)


def root(x: Tensor) -> Tensor:
    """``x.pow(0.5)`` (fp32 under autocast)."""
    return pointwise(high(x), "root", saves_input=True, scratch=2)


def exp(x: Tensor) -> Tensor:
    """``x.exp()`` (fp32 under autocast)."""
    return pointwise(high(x), "exponential", saves_output=True)


def expm1(x: Tensor) -> Tensor:
    """``torch.expm1(x)`` (fp32 under autocast): grad * (result + 1)."""
    return pointwise(high(x), "exponential less one", saves_output=True, scratch=1)


def total(x: Tensor) -> Tensor:
    """``x.sum(-1, keepdim=True)`` (fp32 under autocast); its gradient is expanded."""
    x = high(x)
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [Tensor(tape, grad.storage, like.shape, like.dtype, base=grad)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, (*x.shape[:-1], 1), x.dtype, "sum")


def norm(x: Tensor) -> Tensor:
    """``x.norm(p=2, dim=-1, keepdim=True)`` (fp32 under autocast); backward: self * (grad / norm)."""
    x = high(x)
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through a norm")]

    node = tape.node((x,), backward)
    tape.save(node, x)
    tape.work(0, x.num_bytes, x.dtype)
    out = output(node, tape, (*x.shape[:-1], 1), x.dtype, "norm")
    tape.save(node, out)
    return out


def log_sigmoid(x: Tensor) -> Tensor:
    """``F.logsigmoid(x)``: saves its input; the CUDA kernel has no buffer."""
    return pointwise(x, "log-sigmoid", saves_input=True)


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh(x)``."""
    return pointwise(x, "tanh", saves_output=True)


def sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid(x)``."""
    return pointwise(x, "sigmoid", saves_output=True)


def silu(x: Tensor) -> Tensor:
    """``F.silu(x)``."""
    return pointwise(x, "silu output", saves_input=True)


def gelu(x: Tensor) -> Tensor:
    """``F.gelu(x)``, exact or with tanh: one kernel."""
    return pointwise(x, "gelu output", saves_input=True)


def relu(x: Tensor) -> Tensor:
    """``F.relu(x)``: saves its output."""
    return pointwise(x, "relu output", saves_output=True)


def clamp(x: Tensor, bounds: int = 2) -> Tensor:
    """``torch.clamp(x, min, max)``: saves its input; backward makes a boolean mask for each bound."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        within = [tape.empty(like.shape, "bool", "which lie within") for _ in range(bounds)]
        result = new_like(tape, like, "gradient through a clamp")
        del within
        return [result]

    node = tape.node((x,), backward)
    tape.save(node, x)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, "clamped")


def least(a: Tensor, b: Tensor) -> Tensor:
    """``torch.min(a, b)``: saves both; backward makes masks, halves the gradient where both are equal."""
    tape, likes = a.tape, [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [
            None if like is None else fit(new_like(tape, grad.like, "gradient of the least"), like) for like in likes
        ]

    node = tape.node((a, b), backward)
    tape.save(node, a, b)
    tape.work(0, 3 * a.num_bytes, a.dtype)
    return output(node, tape, _broadcast(a.shape, b.shape), a.dtype, "least")


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """``x.masked_fill(mask, number)``: saves the mask."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient outside the mask")]

    node = tape.node((x,), backward)
    tape.save(node, mask)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, "masked scores")


def mean(x: Tensor, dim: int | None = None) -> Tensor:
    """``x.mean(-1, keepdim=True)``, or ``x.mean(dim)``; its gradient is expanded, then divided into a full tensor."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through mean", passes=1)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    shape = (*x.shape[:-1], 1) if dim is None else (*x.shape[:dim], *x.shape[dim + 1 :])
    return output(node, tape, shape, x.dtype, "mean")


def dropout(x: Tensor, probability: float) -> Tensor:
    """``F.dropout`` in training: CUDA's fused op saves a mask of one byte per element."""
    tape, like = x.tape, x.like
    if probability == 0.0 or not tape.training:
        return x

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient through dropout")]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes + x.num_elements, x.dtype)
    mask = tape.empty(x.shape, "bool", "dropout mask")
    tape.save(node, mask)
    return output(node, tape, x.shape, x.dtype, "dropout output")


def dropout_layer(x: Tensor, probability: float) -> Tensor:
    """``nn.Dropout``, which TRL's disable_dropout switches off; ``F.dropout`` it leaves as it is."""
    return dropout(x, probability) if x.tape.drops else x
