"""One vector for each text (sentence-transformers 6.2, sentence_transformer/modules/pooling.py)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.inputs.job_values import Pooling


def pool(states: Tensor, mask: Tensor, how: Pooling) -> Tensor:
    """(B, S, width) to (B, width)."""
    vectors = {"mean": mean, "cls": first, "lasttoken": last}[how](states, mask)
    return ops.copy(vectors, "pooled vectors")  # torch.cat of one


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean over the tokens that the mask leaves, summed in fp32."""
    tape, (batch, length, width) = states.tape, states.shape
    ones = tape.empty((batch, length, 1), states.dtype, "mask")
    weighed = ops.mul(states, ones, "states without padding")
    summed = sum_tokens(weighed)
    del weighed
    counted = tape.empty((batch, 1), "fp32", "tokens counted")
    counted = tape.empty((batch, 1), "fp32", "tokens counted")  # clamp
    return ops.to(ops.mul(summed, counted, "mean state"), states.dtype, "mean state")


def sum_tokens(x: Tensor) -> Tensor:
    """``x.sum(dim=1, dtype=torch.float32)``; the gradient is expanded, then cast to the dtype of `x`."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [ops.fit(Tensor(tape, grad.storage, like.shape, grad.dtype, base=grad), like)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return ops.output(node, tape, (x.shape[0], x.shape[2]), "fp32", "sum over tokens")


def first(states: Tensor, mask: Tensor) -> Tensor:
    """The state of the first token that the mask leaves."""
    tape, (batch, length, width) = states.tape, states.shape
    counted = tape.empty((batch, length), "int32", "mask")
    index = tape.empty((batch,), "int64", "places of the first tokens")
    del counted
    return ops.gather(states, index, (batch, 1, width)).view(batch, width)


def last(states: Tensor, mask: Tensor) -> Tensor:
    """The state of the last token that the mask leaves; the mask is written out for every element first."""
    tape, (batch, length, width) = states.tape, states.shape
    turned = tape.empty((batch, length), "int64", "mask, turned")
    values = [tape.empty((batch,), "int64", what) for what in ("highest of the mask", "places of the last tokens")]
    del turned
    index = tape.empty((batch,), "int64", "places of the last tokens")
    whole = tape.empty(states.shape, states.dtype, "mask of every element")
    weighed = ops.mul(states, whole, "states without padding")
    return ops.gather(weighed, index, (batch, 1, width)).view(batch, width)
