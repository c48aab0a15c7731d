"""Layers as Liger's kernels compute them: what their host code allocates, saves for backward and overwrites.

liger-kernel 0.8.5, ops/rms_norm.py, layer_norm.py, rope.py, swiglu.py and geglu.py; Triton's kernels allocate nothing.
Each is an autograd.Function, so its saved tensors are packed after its output exists; they are freed in the order that
it saves them, which is from the end here.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ReferenceType, ref

from vramplan.analytic.autograd.graph import Grads, Like, Node, Tensor
from vramplan.analytic.autograd.tape import Tape


def rms_norm(x: Tensor, weight: Tensor, in_place: bool, multiprocessors: int) -> Tensor:
    """LigerRMSNormFunction: an output in the input's dtype, saves the input and fp32 reciprocal roots.

    `in_place`: the gradient of the input overwrites that of the output. Each multiprocessor sums its rows' gradient of
    a weight that trains in fp32.
    """
    tape, like, of_weight = x.tape, x.like, weight.like
    trains = weight.node is not None

    def backward(grad: Tensor) -> Grads:
        partial = partial_sums(tape, like, multiprocessors) if trains else None
        result = grad.view(*like.shape) if in_place else tape.empty(like.shape, like.dtype, "gradient through a norm")
        tape.work(0, 3 * grad.num_bytes, like.dtype)
        grads: Grads = [result, None if partial is None else summed(tape, partial, of_weight)]
        del partial
        return grads

    node = tape.node((x, weight), backward)
    out = tape.empty(like.shape, like.dtype, "output")
    roots = tape.empty(like.shape[:-1], "fp32", "reciprocal root of each row")
    tape.work(0, 2 * x.num_bytes, like.dtype)
    tape.save(node, roots, weight, x)
    return Tensor(tape, out.storage, like.shape, like.dtype, node)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, multiprocessors: int) -> Tensor:
    """LigerLayerNormFunction: in the input's dtype also under autocast; saves the input, fp32 means and roots."""
    tape, like = x.tape, x.like
    trained = [parameter.like if parameter.node is not None else None for parameter in (weight, bias)]

    def backward(grad: Tensor) -> Grads:
        partial = [None if one is None else partial_sums(tape, like, multiprocessors) for one in trained]
        result = tape.empty(like.shape, like.dtype, "gradient through a norm")
        tape.work(0, 3 * grad.num_bytes, like.dtype)
        sums = [
            None if one is None or of is None else summed(tape, one, of)
            for one, of in zip(partial, trained, strict=True)
        ]
        del partial
        return [result, *sums]

    node = tape.node((x, weight, bias), backward)
    out = tape.empty(like.shape, like.dtype, "output")
    statistics = [tape.empty(like.shape[:-1], "fp32", f"{name} of each row") for name in ("mean", "reciprocal root")]
    tape.work(0, 2 * x.num_bytes, like.dtype)
    tape.save(node, *reversed(statistics), bias, weight, x)
    return Tensor(tape, out.storage, like.shape, like.dtype, node)


def partial_sums(tape: Tape, like: Like, multiprocessors: int) -> Tensor:
    """A row of the weight's gradient for each multiprocessor."""
    return tape.empty(
        (multiprocessors, like.shape[-1]), "fp32", "gradient of the weight by multiprocessor", "workspace"
    )


def summed(tape: Tape, partial: Tensor, like: Like) -> Tensor:
    """``partial.sum(dim=0).to(dtype)``."""
    tape.work(0, partial.num_bytes, "fp32")
    total = tape.empty(like.shape, "fp32", "gradient of the weight")
    return total if like.dtype == "fp32" else tape.empty(like.shape, like.dtype, "gradient of the weight")


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, slices: bool, copied_grads: Sequence[bool]) -> list[Tensor]:
    """LigerRopeFunction: q and k (B, S, heads, D) are rotated in place, their gradients too; saves cos and sin.

    `slices`: q and k are parts of a wider projection, copied first. `copied_grads`: whether the gradient of q, of k has
    heads before positions in memory, which is copied.
    """
    tape, likes = q.tape, [q.like, k.like]

    def backward(*grads: Tensor) -> Grads:
        tape.work(0, 2 * sum(grad.num_bytes for grad in grads), likes[0].dtype)
        return [
            tape.empty(like.shape, like.dtype, "gradient with heads last") if copied else grad.view(*like.shape)
            for grad, like, copied in zip(grads, likes, copied_grads, strict=True)
        ]

    node = tape.node((q, k), backward, num_grads=2)
    rotated = [tape.empty(x.shape, x.dtype, "rotated") if slices else x for x in (q, k)]
    tape.work(0, 2 * (q.num_bytes + k.num_bytes), q.dtype)
    tape.save(node, cos, sin)
    return [Tensor(tape, x.storage, x.shape, x.dtype, node, index) for index, x in enumerate(rotated)]


def gated_product(gate: Tensor, up: Tensor, slices: bool = False) -> Tensor:
    """LigerSiLUMulFunction, LigerGELUMulFunction: ``act(gate) * up``; saves both, which their gradients overwrite.

    `slices`: gate and up are parts of one projection, copied first.
    """
    tape, like = gate.tape, gate.like
    own: list[ReferenceType[Node]] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 5 * grad.num_bytes, like.dtype)
        return overwritten(own, tape, like)

    node = tape.node((gate, up), backward)
    own += [] if node is None else [ref(node)]
    gate, up = (tape.empty(x.shape, x.dtype, "contiguous copy") if slices else x for x in (gate, up))
    out = tape.empty(like.shape, like.dtype, "product")
    tape.work(0, 3 * out.num_bytes, like.dtype)
    tape.save(node, up, gate)
    return Tensor(tape, out.storage, like.shape, like.dtype, node)


def overwritten(own: list[ReferenceType[Node]], tape: Tape, like: Like) -> Grads:
    """Gradients in the memory of the tensors that a node saved; backward functions must not hold tensors themselves."""
    node = own[0]()
    assert node is not None
    return [Tensor(tape, storage, *like).view(*like.shape) for storage in reversed(node.saved)]
