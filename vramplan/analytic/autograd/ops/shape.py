"""Views and copies: slices, splits, concatenation along the last dimension, attention heads."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.ops.base import fit, new_like, output, promote
from vramplan.analytic.autograd.ops.elementwise import shift


def copy(x: Tensor, what: str = "contiguous copy") -> Tensor:
    """``x.contiguous()`` of a tensor that is not contiguous; the gradient passes through as a view."""
    return shift(x, what)


def heads_first(x: Tensor) -> Tensor:
    """``x.transpose(1, 2)``: a view. A gradient with heads first is copied back by the reshape before it."""
    tape, like = x.tape, x.like
    if x.node is None or like.shape[2] == 1:  # one head: either order is the same
        return x

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient with heads last", passes=2)]

    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def sliced(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A slice with `shape`: a view; its gradient is a zeroed tensor of the full shape (slice_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of a slice", passes=2)]

    return Tensor(tape, x.storage, shape, x.dtype, tape.node((x,), backward))


def part(x: Tensor, size: int) -> Tensor:
    """``x[..., i : i + size]``."""
    return sliced(x, (*x.shape[:-1], size))


def views(x: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """``torch.split``: views; the gradient concatenates their gradients (split_with_sizes_backward)."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        return [new_like(tape, like, "joined gradient of a split", passes=2)]

    node = tape.node((x,), backward, num_grads=len(shapes))
    return [Tensor(tape, x.storage, shape, x.dtype, node, i) for i, shape in enumerate(shapes)]


def split(x: Tensor, *sizes: int) -> list[Tensor]:
    """``x.split(sizes, dim=-1)``."""
    return views(x, [(*x.shape[:-1], size) for size in sizes])


def cat(a: Tensor, b: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """``torch.cat((a, b), dim=-1)``; the gradients are views of the incoming one, summed if `shape` broadcasts."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        part_of = [None if like is None else grad.view(*grad.shape[:-1], like.shape[-1]) for like in likes]
        return [
            None if like is None or part is None else fit(part, like) for part, like in zip(part_of, likes, strict=True)
        ]

    node = tape.node((a, b), backward)
    shape = shape or (*a.shape[:-1], a.shape[-1] + b.shape[-1])
    out = output(node, tape, shape, promote(a.dtype, b.dtype), "concatenation")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def repeat_heads(x: Tensor, groups: int, copies: bool = False) -> Tensor:
    """Transformers' ``repeat_kv``: (B, S, K, D) to (B, S, K * groups, D), a copy; backward sums the groups.

    A single head is expanded to a view with stride 0 unless `copies` (``repeat_interleave``).
    """
    if groups == 1:
        return x
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient summed over a head group", passes=1 + groups)]

    node = tape.node((x,), backward)
    batch, length, heads, dim = x.shape
    if heads == 1 and not copies:
        return Tensor(tape, x.storage, (batch, length, groups, dim), x.dtype, node)
    out = output(node, tape, (batch, length, heads * groups, dim), x.dtype, "heads repeated to all query heads")
    tape.work(0, x.num_bytes + out.num_bytes, x.dtype)
    return out
