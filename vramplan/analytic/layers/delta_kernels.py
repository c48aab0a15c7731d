"""The gated delta rule and the convolution over time by the kernels of flash-linear-attention and causal-conv1d.

Read off flash-linear-attention 0.6.0 (fla/ops/gated_delta_rule/chunk.py: ChunkGatedDeltaRuleFunction) and causal-conv1d
1.6.1 (causal_conv1d_interface.py: CausalConv1dFn, cpp_functions.py). Their kernels are Triton's and CUDA's, so no trace
sees them. Tensors are (batch B, length S, heads, head dim).
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.step_time.kernels import ATTENTION, BACKWARD
from vramplan.units import ceil_div

CHUNK = 64
"""Tokens of a chunk (chunk_gated_delta_rule: chunk_size)."""
WORKSPACE = "workspace"


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``causal_conv1d_fn`` with its activation, (B, S, C): saves input, weight and bias, and nothing else."""
    tape, dtype = x.tape, x.dtype
    inputs = (x, weight) if bias is None else (x, weight, bias)
    likes = [tensor.like if tensor.node is not None else None for tensor in inputs]
    shapes = [tensor.like for tensor in inputs]
    moved = 2 * x.num_bytes

    def backward(grad: Tensor) -> Grads:
        of_input = tape.empty(shapes[0].shape, dtype, "gradient")
        wide = [tape.empty(like.shape, "fp32", "gradient in fp32") for like in shapes[1:]]
        tape.work(0, 2 * moved, dtype)
        found: Grads = [of_input if likes[0] is not None else None]
        for one, like in zip(wide, likes[1:], strict=True):
            found.append(None if like is None else ops.fit(one, like))
        return found

    node = tape.node(inputs, backward)
    del inputs
    tape.work(0, moved, dtype)
    out = ops.output(node, tape, x.shape, dtype, "convolution over time")
    tape.save(node, x, weight, *(() if bias is None else (bias,)))
    return out


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, strength: Tensor, keeps_state: bool
) -> tuple[Tensor, ...]:
    """``chunk_gated_delta_rule`` with its own norm of queries and keys; the last state too if it `keeps_state`.

    Saves normed queries and keys and the lengths that they had, values, summed decays, beta and one inverse of 64
    columns for each token and head. The states of all chunks are made again in backward.
    """
    tape, dtype, (batch, length, heads, dim) = query.tape, query.dtype, value.shape
    inputs = query, key, value, forget, strength
    likes = [x.like if x.node is not None else None for x in inputs]
    keys, groups, key_dim = query.shape, heads // query.shape[2], query.shape[3]
    wide, narrow = (batch, length, heads, key_dim), (batch, length, heads, dim)
    per_token, states = (batch, length, heads), (batch, ceil_div(length, CHUNK), heads, key_dim, dim)
    beta_dtype = strength.dtype
    flops = 2 * batch * length * heads * (2 * CHUNK * (2 * key_dim + dim) + 3 * key_dim * dim)
    moved = 2 * sum(x.num_bytes for x in inputs)

    def backward(grad: Tensor) -> Grads:
        tape.work(3 * flops, 4 * moved, dtype, 8, ATTENTION + BACKWARD)
        again = [
            tape.empty(wide, dtype, "keys that read the state", WORKSPACE),
            tape.empty(narrow, dtype, "corrected values, before the state", WORKSPACE),
            tape.empty(states, dtype, "states of all chunks", WORKSPACE),
            tape.empty(narrow, dtype, "corrected values", WORKSPACE),
        ]
        of_values = tape.empty(narrow, dtype, "gradient of corrected values", WORKSPACE)
        of_states = tape.empty(states, dtype, "gradients of the states", WORKSPACE)
        of_values = tape.empty(narrow, dtype, "gradient of corrected values", WORKSPACE)
        of_query = tape.empty(wide, dtype, "gradient of all heads", WORKSPACE)
        of_key = tape.empty(wide, dtype, "gradient of all heads", WORKSPACE)
        of_decay = tape.empty(per_token, "fp32", "gradient of the decay")
        of_reads = tape.empty(wide, dtype, "gradient of keys that read the state", WORKSPACE)
        if groups > 1:
            of_query = tape.empty(keys, dtype, "gradient summed over a head group")
            of_key = tape.empty(keys, dtype, "gradient summed over a head group")
        of_decay = tape.empty(per_token, "fp32", "gradient of the decay")
        more = tape.empty(wide, dtype, "gradient of all heads", WORKSPACE)
        result = tape.empty(narrow, dtype, "gradient of the values")
        rest = tape.empty(per_token, "fp32", "gradient of the decay", WORKSPACE)
        of_beta = tape.empty(per_token, beta_dtype, "gradient of beta")
        if groups > 1:
            more = tape.empty(keys, dtype, "gradient summed over a head group", WORKSPACE)
        of_decay = tape.empty(per_token, "fp32", "gradient of the decay")
        del again, of_values, of_states, of_reads, more, rest
        of_query = tape.empty(keys, dtype, "gradient of the queries")
        of_key = tape.empty(keys, dtype, "gradient of the keys")
        found: Grads = [of_query, of_key, result, of_decay, of_beta]
        return [None if like is None else one for one, like in zip(found, likes, strict=True)]

    node = tape.node(inputs, backward)
    with tape.no_grad():  # what the wrapper of the function makes contiguous lives until it returns
        given = [ops.copy(x, "contiguous copy") for x in (query, key, value)]
    normed = [_normed(tape, keys, dtype) for _ in range(2)]
    summed = tape.empty(per_token, "fp32", "summed decay")
    inverse = tape.empty((*per_token, CHUNK), dtype, "inverse of each chunk's system")
    passing = [
        tape.empty(wide, dtype, "keys that read the state", WORKSPACE),
        tape.empty(narrow, dtype, "corrected values, before the state", WORKSPACE),
        tape.empty(states, dtype, "states of all chunks", WORKSPACE),
    ]
    last = [tape.empty((batch, heads, key_dim, dim), "fp32", "last state")] if keeps_state else []
    passing.append(tape.empty(narrow, dtype, "corrected values", WORKSPACE))
    tape.work(flops, moved, dtype, 6, ATTENTION)
    out = ops.output(node, tape, narrow, dtype, "output of all chunks")
    del passing
    tape.save(node, *(x for pair in normed for x in pair), given[2], summed, strength, inverse)
    return out, *last


def _normed(tape: Tape, shape: tuple[int, ...], dtype: str) -> tuple[Tensor, Tensor]:
    """``l2norm_fwd``: the rows, and the reciprocal of the length that they had."""
    return tape.empty(shape, dtype, "normed rows"), tape.empty(shape[:-1], "fp32", "reciprocal lengths")
