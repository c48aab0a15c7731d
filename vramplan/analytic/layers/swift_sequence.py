"""GPUs that share the tokens of a micro-batch, as ms-swift's Ulysses has it: each computes all tokens of some heads.

Mirrors ms-swift 4.6 (sequence_parallel/ulysses.py: single_all_to_all; sequence_parallel.py: split, gather; utils.py:
GatherLoss, ChunkedCrossEntropyLoss). Rows stay rows: each GPU has as many tokens of every one.
"""

from __future__ import annotations

from weakref import ReferenceType, ref

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor
from vramplan.analytic.layers.sequence_parallel import Attention, Shape, exchanged, with_all_tokens_shape
from vramplan.units import ceil_div


def part_of_rows(tensor: Tensor, gpus: int) -> Tensor:
    """One GPU's tokens of each row (B, S): a copy, or a view of a row on its own."""
    rows, length = tensor.shape
    own = ceil_div(length, gpus)
    if length % gpus:
        tensor = tensor.tape.empty((rows, own * gpus), tensor.dtype, "tokens, padded to a multiple of the GPUs")
    if rows == 1:
        return Tensor(tensor.tape, tensor.storage, (1, own), tensor.dtype)
    return tensor.tape.empty((rows, own), tensor.dtype, "tokens of a GPU")


def with_all_tokens_of_rows(attention: Attention, q: Tensor, k: Tensor, v: Tensor, gpus: int) -> Tensor:
    """Attention on (B, S / gpus, heads, D): on (B, S, heads / gpus, D) between two exchanges."""
    q, k, v = (exchanged(x, with_all_tokens_shape(x.shape, gpus), gpus, _all_to_all) for x in (q, k, v))
    positions = q.tape.empty(q.shape[:2], "int64", "positions of all tokens, gathered")
    out = attention(q, k, v)
    batch, length, heads, dim = out.shape
    del q, k, v
    out = exchanged(out, (batch, length // gpus, heads * gpus, dim), gpus, _all_to_all)
    del positions
    return out


def of_whole_rows(x: Tensor, gpus: int, length: int) -> Tensor:
    """Numbers (B, S) of all tokens, by those of one GPU's (GatherLoss): an all-gather, and a copy of its parts."""
    tape, like, (rows, own) = x.tape, x.like, x.shape

    def backward(grad: Tensor) -> Grads:
        scaled = tape.empty(grad.shape, grad.dtype, "gradient of all tokens, times the GPUs")
        return [ops.new_like(tape, like, "gradient of a GPU's tokens")] if scaled is not None else []

    node = tape.node((x,), backward)
    gathered = tape.empty((rows * gpus, own), x.dtype, "numbers of all tokens, gathered")
    out = ops.output(node, tape, (rows, own * gpus), x.dtype, "numbers of all tokens")
    del gathered
    return out if length == own * gpus else ops.copy(ops.sliced(out, (rows, length)), "numbers without padding")


def cross_entropy_in_chunks(logits: Tensor, labels: Tensor, size: int, in_place: bool) -> Tensor:
    """(T,) losses by (T, V) logits, `size` tokens at a time in both passes: no log-probabilities of all are kept.

    `in_place`: backward writes the gradients over the logits, as up to 4.5.
    """
    tape, like, (tokens, vocabulary) = logits.tape, logits.like, logits.shape
    shape, several = (min(size, tokens), vocabulary), tokens > size
    own: list[ReferenceType[Node]] = []

    def backward(grad: Tensor) -> Grads:
        node = own[0]()
        assert node is not None
        if in_place:
            whole = Tensor(tape, node.saved[0], *like)
        else:
            whole = ops.new_like(tape, like, "gradient of the logits")
        del node
        before = tape.empty(shape, like.dtype, "gradient of the chunk before") if several else None
        log_probs = tape.empty(shape, like.dtype, "log-probabilities of a chunk")
        of_loss = tape.empty(shape, like.dtype, "gradient of the log-probabilities of a chunk")
        of_logits = tape.empty(shape, like.dtype, "gradient of the logits of a chunk")
        del before, log_probs, of_loss, of_logits
        return [whole]

    node = tape.node((logits,), backward)
    own += [] if node is None else [ref(node)]
    tape.save(node, logits, labels)
    chunk = tape.empty(shape, logits.dtype, "log-probabilities of a chunk")
    tape.work(0, 3 * logits.num_bytes, logits.dtype, launches=2 * ceil_div(tokens, size))
    del chunk
    return ops.output(node, tape, (tokens,), logits.dtype, "losses of the tokens")


def _all_to_all(x: Tensor, shape: Shape, gpus: int) -> Tensor:
    """What is sent has the GPUs first, and so has what arrives; of a row on its own that is the order of its tokens."""
    tape, (batch, length, _, _) = x.tape, x.shape
    splits_heads = shape[1] > length
    sent = tape.empty(x.shape, x.dtype, "heads for each GPU") if splits_heads or batch > 1 else None
    arrived = tape.empty(shape, x.dtype, "all tokens of some heads" if splits_heads else "parts of the GPUs")
    tape.work(0, 4 * x.num_bytes, x.dtype)  # copied, sent and received
    if splits_heads and batch == 1:
        del sent
        return arrived
    joined = tape.empty(shape, x.dtype, "all tokens of some heads" if splits_heads else "all heads of some tokens")
    tape.work(0, 2 * x.num_bytes, x.dtype)
    del sent, arrived
    return joined
