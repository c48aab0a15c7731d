"""Shared by all ops: results, gradients fitted to their operands, casts under autocast."""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd.graph import Grads, Like, Node, Parameter, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.units import DTYPE_BYTES

_RANK = {"bool": 0, "int64": 0, "fp16": 1, "bf16": 1, "fp32": 2}


def promote(a: str, b: str) -> str:
    """The dtype of an elementwise op on two tensors: half with fp32 gives fp32."""
    return a if _RANK[a] >= _RANK[b] else b


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a == b:
        return a
    length = max(len(a), len(b))
    a, b = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def output(node: Node | None, tape: Tape, shape: tuple[int, ...], dtype: str, what: str, category: str = "") -> Tensor:
    """An op's result in a new storage."""
    return Tensor(tape, tape.allocate(shape, dtype, what, category), shape, dtype, node)


def new_like(tape: Tape, like: Like, what: str, passes: int = 3) -> Tensor:
    """A new tensor like `like`, written by one kernel that reads and writes `passes` tensors of that size."""
    size = prod(like.shape)
    tape.work(0, passes * size * DTYPE_BYTES[like.dtype], like.dtype)
    return tape.empty(like.shape, like.dtype, what)


def fit(grad: Tensor, like: Like) -> Tensor:
    """A gradient summed to its operand's shape and cast to its dtype (engine.cpp: validate_outputs)."""
    if (count := prod(grad.shape)) != (kept := prod(like.shape)):
        source = grad.shape
        grad = new_like(grad.tape, Like(like.shape, grad.dtype), "sum of a broadcast gradient")
        if like.shape and source[-1] == like.shape[-1]:
            grad.tape.buffer("sum", (count // kept, kept), grad.dtype)
    if grad.dtype != like.dtype:
        grad = new_like(grad.tape, like, "cast of a gradient")
    return grad if grad.shape == like.shape else grad.view(*like.shape)


def pointwise(
    x: Tensor,
    what: str,
    saves_input: bool = False,
    saves_output: bool = False,
    scratch: int = 0,
) -> Tensor:
    """An elementwise op on one tensor; backward allocates `scratch` temporaries, then one gradient, of its size."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        # held until the gradient exists: intermediate results of the derivative's formula
        temporaries = [new_like(tape, like, f"temporary of the backward of {what}") for _ in range(scratch)]
        result = new_like(tape, like, f"gradient through {what}")
        del temporaries
        return [result]

    node = tape.node((x,), backward)
    if saves_input:
        tape.save(node, x)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = output(node, tape, x.shape, x.dtype, what)
    if saves_output:
        tape.save(node, out)
    return out


def to(x: Tensor, dtype: str, what: str = "") -> Tensor:
    """``x.to(dtype)``: a copy, or `x` itself."""
    if x.dtype == dtype:
        return x
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "cast of a gradient", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes + x.num_elements * DTYPE_BYTES[dtype], dtype)
    return output(node, tape, x.shape, dtype, what or f"{dtype} copy")


def move(x: Tensor, card: int, what: str = "copy on its card") -> Tensor:
    """``x.to(device)``: a copy on GPU `card`, or `x` itself; its gradient is copied back (ToCopyBackward)."""
    tape, like, home = x.tape, x.like, x.tape.card_of(x)
    if home == card:
        return x

    def backward(grad: Tensor) -> Grads:
        tape.card = home  # the engine sums it with others on that GPU
        return [new_like(tape, like, "gradient on its way back", passes=2)]

    with tape.on(card):
        node = tape.node((x,), backward)
        tape.work(0, 2 * x.num_bytes, x.dtype)
        return output(node, tape, x.shape, x.dtype, what)


def low(x: Tensor) -> Tensor:
    """`x` in autocast's dtype, as matmul-like ops take it; an fp32 weight that needs a gradient is cast once."""
    tape = x.tape
    dtype = tape.autocast
    if dtype is None or x.dtype != "fp32":
        return x if dtype is None else to(x, dtype)
    if not isinstance(x, Parameter):
        return to(x, dtype)
    if not (x.trains or x.is_of_reference) or tape.in_inference_mode:
        return to(x, dtype, f"{dtype} copy of the weight (autocast)")
    cast = tape.autocast_cache.get(id(x))
    if cast is None:
        cast = tape.autocast_cache[id(x)] = to(x, dtype, f"{dtype} copy of the weight (autocast cache)")
    return cast


def high(x: Tensor) -> Tensor:
    """`x` in fp32, as ops of autocast's fp32 list take it."""
    return to(x, "fp32") if x.tape.autocast and x.dtype in ("bf16", "fp16") else x
