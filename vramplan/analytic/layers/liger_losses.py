"""Liger's losses: fused with the head, or of logits that their gradients overwrite (liger-kernel 0.8.5)."""

from __future__ import annotations

from math import prod
from weakref import ReferenceType, ref

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor
from vramplan.analytic.layers.labels import shifted_labels
from vramplan.analytic.layers.liger import overwritten
from vramplan.units import DTYPE_BYTES, ceil_div


def in_place_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """LigerCrossEntropyFunction on (T, V) logits: forward overwrites them by their gradients, which it saves.

    (ops/cross_entropy.py, which replaces ``nn.functional.cross_entropy``.)
    """
    tape, like = logits.tape, logits.like
    own: list[ReferenceType[Node]] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * prod(like.shape) * DTYPE_BYTES[like.dtype], like.dtype)
        return overwritten(own, tape, like)

    node = tape.node((logits,), backward)
    own += [] if node is None else [ref(node)]
    per_token = tape.empty(like.shape[:1], like.dtype, "loss per token")
    mask = tape.empty(like.shape[:1], "bool", "labels that count")
    counted = tape.empty(like.shape[:1], "int64", "labels that count")  # the mask's sum, then labels times the mask
    del counted
    tape.work(0, 2 * logits.num_bytes, like.dtype)
    tape.save(node, logits)
    out = ops.output(node, tape, (), "fp32", "loss")
    del per_token, mask
    return out


def liger_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Liger's fused head and loss (liger_kernel/ops/fused_linear_cross_entropy.py, 0.8.5), computed in forward.

    The gradients of the hidden state and, if the head trains, of its weight are computed in forward and saved in their
    stored dtypes; logits exist for one chunk of tokens: next_pow2(ceil(T / ceil(V / H))).
    """
    tape, dtype = hidden.tape, hidden.dtype
    likes = [x.like for x in (hidden, weight)]
    needs = [x.node is not None for x in (hidden, weight)]
    tokens, (vocabulary, width) = prod(hidden.shape[:-1]), weight.shape
    rows = ceil_div(tokens, ceil_div(vocabulary, width))
    chunk = min(tokens, 1 << (rows - 1).bit_length())
    chunks = ceil_div(tokens, chunk)
    batch, length = labels.shape
    shifted = shifted_labels(tape, batch, length)
    gradients: list[Tensor | None] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * tokens * width * 2, dtype)
        grads = list(gradients)
        gradients.clear()
        return grads

    node = tape.node((hidden, weight), backward)
    first = tape.empty(likes[0].shape, dtype, "gradient of the hidden state (kept by Liger)")
    second = tape.empty(likes[1].shape, likes[1].dtype, "gradient (kept by Liger)") if all(needs) else None
    per_token = [tape.empty((tokens,), kind, "Liger loss per token") for kind in ("fp32", "bool")]
    counted = tape.empty((tokens,), "int64", "labels that count")  # the sum of a boolean mask
    del counted
    low = tape.autocast or dtype
    with tape.no_grad():
        if dtype == weight.dtype == low:
            logits = tape.empty((chunk, vocabulary), dtype, "logits of one chunk", "logits")
            if second is not None and dtype == "fp32":
                product = tape.empty(likes[1].shape, dtype, "gradient of the head's weight, one chunk's")
                del product
            del logits
        else:
            for _ in range(min(2, chunks)):
                _liger_chunk(hidden, weight, chunk, low, needs[0], second is not None)
    products = 3 if second is not None else 2
    moved = products * chunks * (vocabulary * width + chunk * (vocabulary + width)) * DTYPE_BYTES[low]
    results = products * tokens * vocabulary
    tape.product(2 * results * width, moved, low, results, products * chunks)
    # each chunk's logits: a cast, the loss and its gradient in place, a cast (liger_kernel, ops/cross_entropy.py)
    tape.work(0, 4 * tokens * vocabulary * DTYPE_BYTES[low], low, launches=4 * chunks)
    if node is not None:
        tape.keep(*(tensor for tensor in (first, second) if tensor is not None))
        gradients.extend([first if needs[0] else None, second])
    del first, second
    out = ops.output(node, tape, (), "fp32", "loss")
    del per_token
    shifted.reverse()  # a list goes from its end
    del shifted
    return out


def _liger_chunk(
    hidden: Tensor, weight: Tensor, chunk: int, low: str, hidden_trains: bool, weight_trains: bool
) -> None:
    """One chunk under autocast: the weight is cast each time, as the cast of the view ``weight.t()`` is not cached."""
    tape, dtype, (vocabulary, width) = hidden.tape, hidden.dtype, weight.shape
    part = tape.empty((chunk, width), low, "chunk of the hidden state cast (autocast)") if dtype != low else None
    cast = tape.empty(weight.shape, low, "weight cast for Liger (autocast)") if weight.dtype != low else None
    logits = tape.empty((chunk, vocabulary), low, "logits of one chunk", "logits")
    del part, cast
    if hidden_trains:
        full_weight = ops.low(weight)  # gradient @ weight: its cast is cached if it trains
        part = tape.empty((chunk, width), low, "gradient of a chunk of the hidden state")
        del part, full_weight
    if weight_trains:
        part = tape.empty((chunk, width), low, "chunk of the hidden state cast") if dtype != low else None
        del part
    del logits
