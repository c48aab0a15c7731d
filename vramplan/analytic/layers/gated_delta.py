"""The gated delta net: linear attention whose state forgets and corrects itself, one state for each value head.

Mirrors transformers 5.23, modeling_qwen3_next.py: Qwen3NextGatedDeltaNet and torch_chunk_gated_delta_rule, the code
that runs where flash-linear-attention and causal-conv1d are not installed. Tensors are (batch B, length S, heads, head
dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops import recurrence
from vramplan.analytic.layers import delta_kernels
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

CHUNK = 64
"""Tokens whose products are computed at once."""


class DeltaHeads(NamedTuple):
    """Heads of a gated delta net, and their widths."""

    keys: int
    values: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Width of all queries, and of all keys."""
        return self.keys * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of all values."""
        return self.values * self.value_dim

    @property
    def width(self) -> int:
        """Width of queries, keys and values together."""
        return 2 * self.key_width + self.value_width


def delta_heads(c: Config) -> DeltaHeads:
    """The linear attention's heads of a configuration (configuration_qwen3_next.py has these defaults)."""
    heads = DeltaHeads(
        c.count("linear_num_key_heads", 16),
        c.count("linear_num_value_heads", 32),
        c.count("linear_key_head_dim", 128),
        c.count("linear_value_head_dim", 128),
    )
    if heads.values % heads.keys:
        raise SpecError(
            f"linear_num_value_heads = {heads.values} is not a multiple of linear_num_key_heads = {heads.keys}"
        )
    return heads


class Projected(NamedTuple):
    """What a gated delta net makes of its input."""

    mixed: Tensor
    """Queries, keys and values, (B, S, width)."""
    gate: Tensor
    """(B, S, values, value dim)."""
    beta: Tensor
    """How much each token corrects the state, (B, S, values)."""
    decay: Tensor
    """How much each token forgets, (B, S, values)."""
    parts: tuple[Tensor, ...] = ()
    """What `mixed` was joined from, held until that is convolved."""
    held: tuple[Tensor, ...] = ()
    """Other tensors that the module's forward holds to its end."""


Project = Callable[[Modules, Config, Tensor, DeltaHeads], Projected]


def gated_delta_net(net: Modules, c: Config, x: Tensor, ctx: Context, project: Project) -> Tensor:
    """The module `linear_attn` of (B, S, W)."""
    heads, name = delta_heads(c), "linear_attn"
    batch, length, width = x.shape
    if ctx.row_mask is not None:
        net.tape.module = name
        x = ops.mul(x, ctx.row_mask, "padding set to 0")
    step = net.parameter(f"{name}.dt_bias", heads.values)
    rate = net.parameter(f"{name}.A_log", heads.values)
    kernel = net.parameter(f"{name}.conv1d.weight", heads.width, 1, c.count("linear_conv_kernel_dim", 4))
    mixed, gate, beta, decay, parts, held = project(net, c, x, heads)
    net.tape.module = name
    if ctx.cache is not None:  # LinearAttentionLayer.update_conv_state
        ctx.cache.append(net.tape.empty((batch, heads.width, kernel.shape[-1]), mixed.dtype, "cached tokens"))
    if ctx.mixer_packages:
        mixed = delta_kernels.convolved(mixed, kernel, None)
    else:
        mixed = convolved(mixed, kernel, None, c.text("hidden_act", "silu"))
    if ctx.cache is not None:
        mixed = ops.sliced(mixed, mixed.shape)
    del parts
    query, key, value = ops.split(mixed, heads.key_width, heads.key_width, heads.value_width)
    query, key = (part.view(batch, length, heads.keys, heads.key_dim) for part in (query, key))
    value = value.view(batch, length, heads.values, heads.value_dim)
    strength = ops.sigmoid(beta)
    forget = ops.mul(
        ops.neg(ops.exp(ops.to(rate, "fp32"))),
        recurrence.softplus(ops.add(ops.to(decay, "fp32"), step)),
        "decay in log space",
    )
    if ctx.mixer_packages:
        out, *state = delta_kernels.delta_rule(query, key, value, forget, strength, ctx.cache is not None)
    else:
        out, *state = chunked_delta_rule(query, key, value, forget, strength, heads, ctx.cache is not None)
    if ctx.cache is not None:  # update_recurrent_state copies it
        ctx.cache.append(net.tape.empty(state[0].shape, "fp32", "cached state"))
    rows = (batch * length * heads.values, heads.value_dim)
    out = gated_norm(net, f"{name}.norm", out.view(*rows), gate.view(*rows))
    out = net.linear(f"{name}.out_proj", out.view(batch, length, heads.value_width), width)
    del held
    return out


def convolved(x: Tensor, kernel: Tensor, bias: Tensor | None, act: str | None) -> Tensor:
    """``causal_conv1d_fn`` of (B, S, C): padded on both sides, what is too long cut off, activated by `act`."""
    dtype, (batch, length, channels) = x.dtype, x.shape
    size = kernel.shape[-1]
    x = ops.to(x, kernel.dtype).view(batch, channels, length)
    out = recurrence.depthwise(x, kernel, bias, length + size - 1)
    if size > 1:
        out = ops.sliced(out, (batch, channels, length))
    if act is not None:
        out = activation(act)(out)
    return ops.to(out, dtype).view(batch, length, channels)


def normed(x: Tensor) -> Tensor:
    """``x / sqrt(sum(x * x) + eps)`` (l2norm)."""
    inverse = ops.rsqrt(ops.shift(ops.total(ops.mul(x, x, "squares"))))
    return ops.mul(x, inverse, "normalised")


def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    strength: Tensor,
    heads: DeltaHeads,
    keeps_state: bool = False,
) -> tuple[Tensor, ...]:
    """``torch_chunk_gated_delta_rule`` in fp32: products within chunks of 64 tokens, then chunk after chunk.

    Returns the output, and the last state if it `keeps_state`.
    """
    tape, dtype = query.tape, query.dtype
    batch, length, groups = query.shape[0], query.shape[1], heads.values // heads.keys
    chunks = ceil_div(length, CHUNK)
    total, blocks = chunks * CHUNK, batch * heads.values
    keys, values = (blocks, chunks, CHUNK, heads.key_dim), (blocks, chunks, CHUNK, heads.value_dim)
    squares, lines = (blocks, chunks, CHUNK, CHUNK), (blocks, chunks, CHUNK, 1)
    if groups > 1:
        query, key = (ops.repeat_heads(part, groups, copies=True) for part in (query, key))
    query, key, value, strength = (_wide(part) for part in (query, key, value, strength))
    strided = dtype == "fp32" and total == length  # neither the cast nor the padding has made them contiguous

    def in_order(x: Tensor) -> Tensor:
        return ops.copy(x, "heads made contiguous") if strided else x

    def of_chunk(x: Tensor) -> Tensor:
        part = ops.sliced(x, (blocks, CHUNK, x.shape[-1]))
        return in_order(part) if batch > 1 else part

    query = normed(query)
    key = normed(key)
    query = ops.scale(query)
    padded = blocks, total
    query, key, value = (
        recurrence.padded(part.view(blocks, length, part.shape[-1]), (*padded, part.shape[-1]))
        for part in (query, key, value)
    )
    strength, decay = (recurrence.padded(part.view(blocks, length, 1), (*padded, 1)) for part in (strength, forget))
    v_beta = ops.mul(value, strength, "values times beta").view(*values)
    k_beta = ops.mul(key, strength, "keys times beta").view(*keys)
    query, key = query.view(*keys), key.view(*keys)
    ones = tape.empty((CHUNK, CHUNK), "bool", "ones, before triu")
    later = tape.empty((CHUNK, CHUNK), "bool", "tokens of a chunk that come later")
    del ones
    summed = recurrence.cumulative(decay.view(*lines))
    pairwise = ops.subtract(summed, summed.view(blocks, chunks, 1, CHUNK), "decay between tokens of a chunk")
    pairwise = ops.masked(pairwise, later)
    pairwise = ops.exp(pairwise)
    per_key, per_value = 2 * blocks * total * CHUNK * heads.key_dim, 2 * blocks * total * CHUNK * heads.value_dim
    system = ops.mul(
        ops.matmul(in_order(k_beta), in_order(key), per_key, squares, "products within chunks"),
        pairwise,
        "system of a chunk",
    )
    scores = ops.mul(
        ops.matmul(in_order(query), in_order(key), per_key, squares, "products within chunks"),
        pairwise,
        "attention within chunks",
    )
    decayed = ops.mul(k_beta, ops.exp(summed), "decayed keys times beta")
    new_values = recurrence.solved(system, v_beta)
    old_keys = recurrence.solved(system, decayed)
    state = tape.empty((blocks, heads.key_dim, heads.value_dim), "fp32", "state")
    out = tape.empty(values, "fp32", "output of all chunks")
    query = ops.mul(query, ops.exp(summed), "decayed queries")
    ends = ops.sliced(summed, (blocks, chunks, 1, 1))
    key = ops.mul(key, ops.exp(ops.subtract(ends, summed)), "decayed keys")
    ends = ops.exp(ops.sliced(summed, (blocks, chunks, 1)))
    block_key, block_value, square = (
        (blocks, CHUNK, heads.key_dim),
        (blocks, CHUNK, heads.value_dim),
        squares[:1] + squares[2:],
    )
    reads = 2 * blocks * CHUNK * heads.key_dim * heads.value_dim
    for _ in tape.chunks(chunks):
        fresh = ops.subtract(
            ops.sliced(new_values, block_value),
            ops.matmul(ops.sliced(old_keys, block_key), state, reads, block_value, "values that the state predicts"),
            "corrected values",
        )
        between = ops.matmul(of_chunk(query), state, reads, block_value, "attention to the state")
        out = recurrence.assigned(
            out,
            ops.add(
                between,
                ops.matmul(
                    ops.sliced(scores, square), fresh, per_value // chunks, block_value, "attention to the chunk"
                ),
                "output of a chunk",
            ),
        )
        state = ops.add(
            ops.mul(state, ops.sliced(ends, (blocks, 1, 1)), "decayed state"),
            ops.matmul(of_chunk(key), fresh, reads, state.shape, "what a chunk adds to the state"),
            "state",
        )
    last = (state,) if keeps_state else ()
    del state
    out = ops.copy(out, "output in order")
    if total > length:
        out = ops.sliced(out.view(blocks, total, heads.value_dim), (blocks, length, heads.value_dim))
    out = ops.to(out, dtype, "output") if dtype != "fp32" else ops.copy(out)
    return out.view(batch, length, heads.values, heads.value_dim), *last


def _wide(x: Tensor) -> Tensor:
    """``x.transpose(1, 2).to(float32, memory_format=contiguous)``: in fp32 already, a copy only of more dimensions."""
    return ops.to(x, "fp32", "fp32 copy with heads first")


def gated_norm(net: Modules, name: str, x: Tensor, gate: Tensor) -> Tensor:
    """Qwen3NextRMSNormGated: RMS norm, then times silu of the gate in fp32."""
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", x.shape[-1])
    dtype = x.dtype
    x = ops.to(x, "fp32")
    variance = ops.mean(ops.square(x))
    x = ops.mul(x, ops.rsqrt(ops.shift(variance)), "normalised")
    x = ops.mul(weight, ops.to(x, dtype, "normalised"), "weighted")
    x = ops.mul(x, ops.silu(ops.to(gate, "fp32")), "gated in fp32")
    return ops.to(x, dtype, "output")
