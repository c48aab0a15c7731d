"""Attention with a learned bias of the scores (T5): for SDPA an additive mask with a gradient.

Tensors are (B, S, heads, D), biases (1, heads, Q, K) (transformers 5.23, integrations/sdpa_attention.py:
create_position_bias_mask; modeling_t5.py: eager_attention_forward).
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.layers.attention import merged
from vramplan.analytic.layers.attention_kernels import efficient_row_sums, softmax
from vramplan.analytic.layers.context import Context
from vramplan.errors import UnsupportedError
from vramplan.step_time.kernels import ATTENTION, BACKWARD
from vramplan.units import ceil_div


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ctx: Context, causal: bool, transposed: bool
) -> tuple[Tensor, ...]:
    """(B, Q, heads * D), and eager attention's probabilities; `transposed`: the bias has heads last in memory."""
    batch, queries, heads, dim = q.shape
    mask = ctx.masks.get(False)
    if ctx.attention == "eager":
        out, weights = eager(q, k, v, bias, mask, ctx)
        return out.view(batch, queries, heads * dim), weights
    if dim % (4 if (q.tape.autocast or q.dtype) == "fp32" else 8):
        raise UnsupportedError(f"heads of width {dim} with a bias: SDPA's math fallback is not modelled")
    if causal and mask is None:
        mask = q.tape.empty((queries, k.shape[1]), "bool", "which keys come before")
    if mask is not None:
        bias = chosen(bias, mask)
    if transposed:
        bias = ops.copy(bias, "bias made contiguous")
    return (efficient(q, k, v, bias).view(batch, queries, heads * dim),)


def chosen(bias: Tensor, mask: Tensor) -> Tensor:
    """``torch.where(mask, bias, min)``, broadcast to both shapes; saves the mask for the bias's gradient."""
    tape, like = bias.tape, bias.like
    shape = (mask.shape[0] if len(mask.shape) == 4 else 1, *bias.shape[1:])
    full = Like(shape, bias.dtype)

    def backward(grad: Tensor) -> Grads:
        gradient = ops.new_like(tape, full, "gradient of a choice")
        tape.applied()
        return [ops.fit(gradient, like)]

    node = tape.node((bias,), backward)
    tape.save(node, mask)
    tape.work(0, 2 * bias.num_bytes, bias.dtype)
    return ops.output(node, tape, shape, bias.dtype, "bias where keys are seen")


def for_all(bias: Tensor, batch: int) -> Tensor:
    """``bias.expand(batch, ...)``: a view; its gradient is summed over the samples."""
    tape, like = bias.tape, bias.like
    if bias.shape[0] == batch:
        return bias

    def backward(grad: Tensor) -> Grads:
        return [ops.fit(grad, like)]

    return Tensor(tape, bias.storage, (batch, *bias.shape[1:]), bias.dtype, tape.node((bias,), backward))


def aligned(bias: Tensor) -> Tensor:
    """The bias with rows padded to a multiple of 8 elements, as the kernel needs (attention.cpp: pad_bias)."""
    tape, like, keys = bias.tape, bias.like, bias.shape[-1]
    if keys % 8 == 0:
        return bias

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of a padded bias")]

    node = tape.node((bias,), backward)
    tape.work(0, 2 * bias.num_bytes, bias.dtype)
    return ops.output(node, tape, (*bias.shape[:-1], ceil_div(keys, 8) * 8), bias.dtype, "padded bias")


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's memory-efficient kernel with a bias, whose gradient (B, heads, Q, K) it makes if needed."""
    bias, v, k, q = ops.low(bias), ops.low(v), ops.low(k), ops.low(q)
    tape, dtype, (batch, queries, heads, dim) = q.tape, q.dtype, q.shape
    bias = for_all(aligned(bias), batch)
    keys, full = k.shape[1], Like((batch, heads, queries, bias.shape[-1]), dtype)
    likes = [x.like if x.node is not None else None for x in (q, k, v)]
    likes.append(full if bias.node is not None else None)
    flops = 4 * batch * heads * queries * keys * dim
    moved = 2 * (q.num_bytes + k.num_bytes) + prod_bytes(full)

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None if like is None else tape.empty(like.shape, dtype, "gradient") for like in likes]
        row_sums = efficient_row_sums(tape, (batch, queries, heads, dim), dtype)
        workspace = tape.buffer("efficient backward", (batch, heads, queries, keys, dim, dim), dtype)
        tape.work(5 * flops // 2, 2 * moved, dtype, 3, ATTENTION + BACKWARD)
        del row_sums, workspace
        return grads

    node = tape.node((q, k, v, bias), backward)
    tape.work(flops, moved, dtype, kind=ATTENTION)
    out = ops.output(node, tape, q.shape, dtype, "attention output")
    log_sum = []
    if node is not None:  # should_compute_logsumexp
        log_sum.append(tape.empty((batch, heads, ceil_div(queries, 32) * 32), "fp32", "attention log-sum-exp"))
    states = [tape.empty((), "int64", "attention random state") for _ in range(2)]
    tape.save(node, *states, out, *log_sum, v, q, k, bias)
    del log_sum
    return out


def prod_bytes(like: Like) -> int:
    """Bytes of a tensor in a two-byte dtype."""
    size = 2
    for side in like.shape:
        size *= side
    return size


def eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, ctx: Context) -> tuple[Tensor, Tensor]:
    """Eager attention: all scores at once in the model's dtype. Returns output and probabilities."""
    batch, queries, heads, dim = q.shape
    keys, cached = k.shape[1], ctx.cache is not None
    shape, flops = (batch, heads, queries, keys), 2 * batch * heads * queries * keys * dim
    scores = ops.matmul(merged(q, False), merged(k, cached), flops, shape, "attention scores")
    scores = ops.scale(scores, "scaled attention scores")
    scores = ops.add(scores, bias, "attention scores with bias")
    if mask is not None:
        scores = ops.add(scores, mask, "masked attention scores")
    scores = softmax(scores)
    weights = ops.dropout(scores, ctx.attention_dropout)
    del scores
    out = ops.matmul(weights, merged(v, cached), flops, (batch, queries, heads, dim), "attention output")
    return ops.copy(out), weights
