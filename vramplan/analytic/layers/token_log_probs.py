"""Log-probabilities of the tokens of one row, taken a token at a time (trl 0.29.1: selective_log_softmax of (T, V)).

The loop of :mod:`vramplan.analytic.layers.label_log_probs` goes over the first dimension, which is that of the tokens
where ms-swift's GRPO has one row (padding_free). Here all tokens are one tensor, and temporaries are those of a token.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.memory.timeline import BLOCK_BYTES


def token_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(T, 1) log-probabilities by (T, V) logits: a logsumexp of each token in fp32, a softmax of each in half."""
    tape, (tokens, vocabulary), like, num_bytes = logits.tape, logits.shape, logits.like, logits.num_bytes

    def unbind_backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradients of all tokens stacked", passes=2)]

    if logits.dtype == "fp32":
        picked = ops.gather(logits, labels, (tokens, 1))
        rows = Tensor(tape, logits.storage, logits.shape, logits.dtype, tape.node((logits,), unbind_backward))
        return ops.subtract(picked, _sums(rows), "log-probabilities")
    rows = Tensor(tape, logits.storage, logits.shape, logits.dtype, tape.node((logits,), unbind_backward))

    saved: list[Tensor] = []

    def backward(grad: Tensor) -> Grads:  # a token's log-probabilities go as its gradient comes: the same memory
        scattered = tape.empty((1, vocabulary), like.dtype, "gradient of a token's log-probabilities")
        gradient = tape.empty((1, vocabulary), like.dtype, "gradient of a token's logits")
        tape.work(0, 4 * num_bytes, like.dtype, launches=2 * tokens)
        del scattered, gradient
        return [saved.pop()]

    node = tape.node((rows,), backward)
    count = 1 if node is None else tokens  # without a graph each token's are dropped
    log_probs = tape.empty((count, vocabulary), logits.dtype, "log-probabilities")
    tape.work(0, 2 * logits.num_bytes, logits.dtype, launches=tokens)
    if node is not None:
        saved.append(log_probs)
    tape.save(node, labels)
    del log_probs
    blocks = tape.empty((tokens, BLOCK_BYTES // 4), "fp32", "log-probability of each token")
    out = ops.output(node, tape, (tokens, 1), logits.dtype, "log-probabilities")
    del blocks
    return out


def _sums(rows: Tensor) -> Tensor:
    """``torch.stack([torch.logsumexp(token, -1) for token in rows])``: a block of memory for each token's number."""
    tape, (tokens, vocabulary), like = rows.tape, rows.shape, rows.like

    def backward(grad: Tensor) -> Grads:
        gradients = ops.new_like(tape, like, "gradients of the logits (log-sum-exp backward)")
        temporaries = [tape.empty((1, vocabulary), "fp32", "probabilities of a token") for _ in range(2)]
        del temporaries
        return [gradients]

    node = tape.node((rows,), backward)
    exponentials = tape.empty((1, vocabulary), "fp32", "exponentials of a token", "workspace")
    tape.work(0, 4 * rows.num_bytes, rows.dtype, launches=3 * tokens)
    blocks = tape.empty((tokens, BLOCK_BYTES // 4), "fp32", "log-sum-exp of each token")
    del exponentials
    tape.save(node, rows, blocks)
    return ops.output(node, tape, (tokens, 1), "fp32", "log-sum-exps")
