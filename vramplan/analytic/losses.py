"""Losses: transformers' own, and two that never hold all logits."""

from __future__ import annotations

from math import prod

from vramplan.analytic import ops
from vramplan.analytic.tape import Grads, Tensor
from vramplan.units import DTYPE_BYTES, ceil_div


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``F.cross_entropy`` on (T, V) fp32 logits: log-softmax keeps its output, nll_loss that same tensor."""
    tape, like = logits.tape, logits.like

    def log_softmax_backward(grad: Tensor) -> Grads:
        return [ops.made(tape, like, "gradient of the logits (log-softmax backward)")]

    def nll_backward(grad: Tensor) -> Grads:
        return [ops.made(tape, like, "gradient of the log-probabilities (nll_loss backward)", passes=1)]

    node = tape.node((logits,), log_softmax_backward)
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    out = ops.output(node, tape, logits.shape, logits.dtype, "log-probabilities")
    tape.save(node, out)
    loss_node = tape.node((out,), nll_backward)
    tape.save(loss_node, out, labels, tape.empty((), "fp32", "total weight"))
    tape.work(0, logits.shape[0] * 4, "fp32")
    return ops.output(loss_node, tape, (), "fp32", "loss")


def liger_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Liger's fused head and loss (liger_kernel/ops/fused_linear_cross_entropy.py, 0.8.5), all work done in forward.

    The gradients of the hidden state and, where the head trains, of its weight are made at once and kept; the logits
    exist for one chunk of tokens: next_pow2(ceil(T / ceil(V / H))).
    """
    tape = hidden.tape
    hidden = ops.low(hidden)
    likes = [x.like for x in (hidden, weight)]
    needs = [x.node is not None for x in (hidden, weight)]
    tokens, (vocabulary, width) = prod(hidden.shape[:-1]), weight.shape
    rows = ceil_div(tokens, ceil_div(vocabulary, width))
    chunk = min(tokens, 1 << (rows - 1).bit_length())

    made: list[Tensor | None] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * tokens * width * 2, hidden_dtype)
        grads = list(made)
        made.clear()
        return grads

    hidden_dtype = hidden.dtype
    node = tape.node((hidden, weight), backward)
    first = tape.empty(likes[0].shape, hidden_dtype, "gradient of the hidden state (kept by Liger)")
    second = tape.empty(likes[1].shape, likes[1].dtype, "gradient (kept by Liger)") if needs[1] else None
    per_token = [tape.empty((tokens,), dtype, "Liger loss per token") for dtype in ("fp32", "bool")]
    cast = tape.empty(weight.shape, hidden_dtype, "weight cast for Liger") if weight.dtype != hidden_dtype else None
    logits = tape.empty((chunk, vocabulary), hidden_dtype, "logits of one chunk", "logits")
    products = 3 if needs[1] else 2
    size = DTYPE_BYTES[hidden_dtype]
    moved = products * ceil_div(tokens, chunk) * (vocabulary * width + chunk * (vocabulary + width)) * size
    tape.work(2 * products * tokens * vocabulary * width, moved, hidden_dtype, launches=4 * ceil_div(tokens, chunk))
    del logits, cast, per_token
    if node is not None:
        tape.keep(*(tensor for tensor in (first, second) if tensor is not None))
        made.extend([first if needs[0] else None, second])
    del first, second
    return ops.output(node, tape, (), "fp32", "loss")


TRL_TILE = (4096, 32768)
"""Tokens by vocabulary entries of one tile of TRL's chunked loss (trl 1.16, ChunkedLogProbFunction)."""


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """TRL's chunked loss (trl 1.16): no logits are kept; backward recomputes them tile by tile in fp32 accumulators."""
    tape = hidden.tape
    hidden = ops.low(hidden)
    dtype, tokens, (vocabulary, width) = hidden.dtype, prod(hidden.shape[:-1]), weight.shape
    hidden_like, weight_like = hidden.like, weight.like
    needs = [x.node is not None for x in (hidden, weight)]
    tile_shape = (min(tokens, TRL_TILE[0]), TRL_TILE[1])
    flops = 2 * tokens * vocabulary * width
    moved = vocabulary * width * DTYPE_BYTES[dtype] * ceil_div(tokens, TRL_TILE[0])

    def backward(grad: Tensor) -> Grads:
        wide = [
            tape.empty(like.shape, "fp32", "gradient of the head's input or weight in fp32") if need else None
            for like, need in zip((hidden_like, weight_like), needs, strict=True)
        ]
        tile = tape.empty(tile_shape, dtype, "tile of logits", "logits")
        tape.work((1 + sum(needs)) * flops, 3 * moved, dtype, launches=8)
        del tile
        grads: Grads = []
        for one, like in zip(wide, (hidden_like, weight_like), strict=True):
            grads.append(None if one is None else ops.fit(one, like))
        del wide
        return grads

    node = tape.node((hidden, weight), backward)
    valid = ops.scale(hidden.detach(), "hidden states of the tokens that count")
    tape.save(node, valid, weight)
    per_token = [tape.empty((tokens,), "fp32", "loss per token") for _ in range(7)]
    tape.save(node, labels, per_token[0], per_token[1])
    tile = tape.empty(tile_shape, dtype, "tile of logits", "logits")
    tape.work(flops, moved, dtype, launches=8)
    del tile, per_token
    return ops.output(node, tape, (), "fp32", "loss")
