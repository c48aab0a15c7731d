"""GPUs that share the tokens of a micro-batch, as verl's Ulysses has it: each computes all tokens of some heads.

Mirrors verl 0.9.1 (utils/ulysses.py; models/transformers/monkey_patch.py: _ulysses_flash_attention_forward). NCCL
takes the lists of an all-to-all as they are (torch 2.13, ProcessGroupNCCL.cpp: alltoall).
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.units import ceil_div

Shape = tuple[int, ...]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Exchange = Callable[[Tensor, Shape, int], Tensor]
"""An all-to-all of a tensor into another shape between so many GPUs."""


def own_tokens(tensor: Tensor, gpus: int) -> Tensor:
    """One GPU's part of the tokens of all samples, (1, tokens): a view of a row, padded if they do not divide it."""
    tokens, own = tensor.num_elements, ceil_div(tensor.num_elements, gpus)
    if tokens % gpus:
        tensor = tensor.tape.empty((1, own * gpus), tensor.dtype, "tokens, padded to a multiple of the GPUs")
    return Tensor(tensor.tape, tensor.storage, (1, own), tensor.dtype)


def with_all_tokens(attention: Attention, q: Tensor, k: Tensor, v: Tensor, gpus: int) -> Tensor:
    """Attention on (B, S / gpus, heads, D): on (B, S, heads / gpus, D) between two exchanges.

    Keys of fewer heads than there are GPUs are repeated until each GPU has one.
    """
    q, k, v = (ops.low(x) for x in (q, k, v))
    repeats = max(gpus // k.shape[2], 1)
    k, v = ops.repeat_heads(k, repeats), ops.repeat_heads(v, repeats)
    q, k, v = (exchanged(x, with_all_tokens_shape(x.shape, gpus), gpus, _all_to_all) for x in (q, k, v))
    positions = q.tape.empty((2, *q.shape[:2]), "int64", "positions of all tokens, gathered and joined")
    out = attention(q, k, v)
    batch, length, heads, dim = out.shape
    out = exchanged(out, (batch, length // gpus, heads * gpus, dim), gpus, _all_to_all)
    del positions
    return out


def of_all_tokens(x: Tensor, gpus: int, tokens: int) -> Tensor:
    """One number of each of all `tokens`, by one GPU's (Gather): an all-gather, and a copy of its parts."""
    if gpus == 1:
        return x
    tape, own, like = x.tape, x.shape, x.like

    def backward(grad: Tensor) -> Grads:
        scaled = tape.empty(grad.shape, grad.dtype, "gradient of all tokens, times the GPUs")
        return [Tensor(tape, scaled.storage, own, like.dtype)]

    node = tape.node((x,), backward)
    shape = (own[0] * gpus, *own[1:])
    gathered = tape.empty(shape, x.dtype, "numbers of all tokens, gathered")
    out = ops.output(node, tape, shape, x.dtype, "numbers of all tokens")
    del gathered
    return ops.sliced(out, (tokens, *own[1:])) if tokens < shape[0] else out


def with_all_tokens_shape(shape: Shape, gpus: int) -> Shape:
    """The shape of a GPU's part of the heads, with all tokens."""
    batch, length, heads, dim = shape
    return batch, length * gpus, heads // gpus, dim


def exchanged(x: Tensor, shape: Shape, gpus: int, all_to_all: Exchange) -> Tensor:
    """SeqAllToAll: a tensor of which each GPU had other tokens, and has other heads, or the other way round."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [all_to_all(grad.view(*shape), like.shape, gpus)]

    node = tape.node((x,), backward)
    own = all_to_all(x, shape, gpus)
    return Tensor(tape, own.storage, shape, x.dtype, node)


def _all_to_all(x: Tensor, shape: Shape, gpus: int) -> Tensor:
    """Parts by heads are copied, those by tokens of one row are not; what arrives is joined."""
    tape: Tape = x.tape
    batch, length, heads, dim = x.shape
    splits_heads = shape[1] > length
    part = (batch, length, heads // gpus, dim) if splits_heads else (batch, length // gpus, heads, dim)
    sent = [tape.empty(part, x.dtype, "heads for a GPU") for _ in range(gpus * splits_heads)]
    arrived = [tape.empty(part, x.dtype, "part of a GPU") for _ in range(gpus)]
    joined = tape.empty(shape, x.dtype, "all tokens of some heads" if splits_heads else "all heads of some tokens")
    tape.work(0, (2 * splits_heads + 4) * x.num_bytes, x.dtype)  # copied, sent and received, joined
    del sent, arrived
    return joined
