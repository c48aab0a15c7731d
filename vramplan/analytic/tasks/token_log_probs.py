"""The log-probabilities of chosen tokens by logits, as TRL computes them."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers.attention_kernels import WORKSPACE

ENTROPY_TOKENS = 128
"""Tokens of a chunk of entropy_from_logits (trl 1.12, trainer/utils.py)."""


def selected_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """``selective_log_softmax`` of (B, C, V) logits and (B, C) tokens (trl 1.12, trainer/utils.py).

    fp32 logits: the token's logit less the log-sum-exp, a sample at a time. Half precision: log-softmax, a sample at a
    time.
    """
    tape, (batch, tokens, _) = logits.tape, logits.shape
    if logits.dtype == "fp32":
        chosen = ops.gather(logits, index, (batch, tokens, 1))
        sums = [log_sum_exp(row) for row in ops.rows_of(logits)]
        return ops.subtract(chosen, ops.stack(sums, "log-sum-exp of all samples").view(batch, tokens, 1)).view(
            batch, tokens
        )
    rows = []
    for row in ops.rows_of(logits):
        scores = log_softmax(row)
        rows.append(ops.gather(scores, tape.empty((tokens, 1), "int64", "tokens of a sample"), (tokens, 1)))
        del scores
    return ops.stack(rows, "log-probabilities of all samples").view(batch, tokens)


def log_sum_exp(x: Tensor) -> Tensor:
    """``torch.logsumexp(x, dim=-1)``: saves `x` and the result, and allocates ``(x - max).exp_()`` while it runs.

    (aten/src/ATen/native/ReduceOps.cpp: logsumexp_out_impl, torch 2.13.)
    """
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:  # grad * (self - result).exp() (FunctionsManual.cpp: logsumexp_backward)
        difference = ops.new_like(tape, like, "logits less their log-sum-exp", passes=2)
        probabilities = ops.new_like(tape, like, "probabilities of a sample", passes=2)
        del difference
        result = ops.new_like(tape, like, "gradient of the logits of a sample")
        del probabilities
        return [result]

    node = tape.node((x,), backward)
    most = tape.empty((*x.shape[:-1], 1), x.dtype, "largest logit of each token")
    out = ops.output(node, tape, x.shape[:-1], x.dtype, "log-sum-exp")
    powers = tape.empty(like.shape, like.dtype, "exponentials of the logits of a sample", WORKSPACE)
    tape.work(0, 3 * x.num_bytes, x.dtype)
    tape.save(node, x, out)
    del powers, most
    return out


def log_softmax(x: Tensor) -> Tensor:
    """``F.log_softmax(x, dim=-1)``: saves its result."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits of a sample (log-softmax backward)")]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = ops.output(node, tape, x.shape, x.dtype, "log-probabilities of a sample")
    tape.save(node, out)
    return out


def entropy(logits: Tensor) -> Tensor:
    """``entropy_from_logits`` without gradients, 128 tokens at a time (trl 1.12, trainer/utils.py)."""
    tape, (batch, tokens, vocabulary) = logits.tape, logits.shape
    chunk = (min(ENTROPY_TOKENS, batch * tokens), vocabulary)
    with tape.no_grad():
        scores = tape.empty(chunk, logits.dtype, "log-probabilities of some tokens")
        powers = tape.empty(chunk, logits.dtype, "probabilities of some tokens")
        products = tape.empty(chunk, logits.dtype, "their product")
        del powers
        sums = tape.empty((batch * tokens,), logits.dtype, "entropies, negated")
        del scores, products
        out = tape.empty((batch, tokens), logits.dtype, "entropies")
        del sums
    tape.work(0, 4 * logits.num_bytes, logits.dtype)
    return out
