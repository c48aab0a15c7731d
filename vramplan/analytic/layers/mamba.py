"""Mamba 2: a state space model with one decay for each head, computed chunk by chunk.

Mirrors transformers 5.23, modeling_mamba2.py: Mamba2Mixer and mamba2_chunk_scan, the code that runs where mamba-ssm and
causal-conv1d are not installed. Granite 4 has the same. Tensors are (batch B, length S, ...).
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops import recurrence
from vramplan.analytic.layers import delta_kernels, mamba_kernels
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.gated_delta import convolved
from vramplan.analytic.layers.mamba_sizes import Mixer
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import SpecError, UnsupportedError, setting
from vramplan.units import ceil_div

Norm = Callable[[Modules, str, Tensor, Tensor, Mixer], Tensor]
Scale = Callable[[Tensor], Tensor]


def mixer(
    net: Modules,
    name: str,
    x: Tensor,
    ctx: Context,
    sizes: Mixer,
    norm: Norm | None = None,
    scales: tuple[Scale, Scale] = (lambda x: x, lambda x: x),
) -> Tensor:
    """Projection, convolution, scan, gated norm, projection; `scales` the input and what is projected (Falcon-H1)."""
    if sizes.heads % sizes.groups:
        raise SpecError(f"{sizes.heads} heads of the state space are not a multiple of {sizes.groups} groups")
    batch, length, width = x.shape
    dtype = x.dtype
    net.tape.module = name
    step = net.parameter(f"{name}.dt_bias", sizes.heads)
    rate = net.parameter(f"{name}.A_log", sizes.heads)
    direct = net.parameter(f"{name}.D", sizes.heads)
    kernel = net.parameter(f"{name}.conv1d.weight", sizes.convolved, 1, sizes.kernel)
    shift = net.parameter(f"{name}.conv1d.bias", sizes.convolved) if sizes.conv_bias else None
    if ctx.row_mask is not None:
        x = ops.mul(x, ctx.row_mask, "padding set to 0")
    x = scales[0](x)
    projected = net.linear(f"{name}.in_proj", x, sizes.inner + sizes.convolved + sizes.heads, sizes.bias)
    net.tape.module = name
    projected = scales[1](projected)
    forget = ops.neg(ops.exp(ops.to(rate, "fp32")))
    if ctx.mixer_packages and norm is None:
        raise UnsupportedError(
            f"{setting('mixer_kernels', 'packages')} with mamba_rms_norm = false is not modelled; use"
            f" {setting('mixer_kernels', 'torch')}"
        )
    if ctx.mixer_packages and net.tape.training and ctx.cache is None:
        scale = net.parameter(f"{name}.norm.weight", sizes.inner)
        weight = net.parameter(f"{name}.out_proj.weight", width, sizes.inner)
        bias = net.parameter(f"{name}.out_proj.bias", width) if sizes.out_bias else None
        return mamba_kernels.fused(projected, kernel, shift, step, forget, direct, scale, weight, bias, sizes)
    gate, mixed, time = ops.split(projected, sizes.inner, sizes.convolved, sizes.heads)
    if ctx.cache is not None:
        ctx.cache.append(net.tape.empty((batch, sizes.convolved, sizes.kernel), mixed.dtype, "cached tokens"))
    if ctx.mixer_packages:
        mixed = delta_kernels.convolved(mixed, kernel, shift)
    else:
        mixed = convolved(mixed, kernel, shift, sizes.act)
    if ctx.cache is not None:
        mixed = ops.sliced(mixed, mixed.shape)
    if ctx.row_mask is not None:
        mixed = ops.mul(mixed, ctx.row_mask, "padding set to 0")
    del x
    values, b, c = ops.split(mixed, sizes.inner, sizes.shared, sizes.shared)
    values = values.view(batch, length, sizes.heads, sizes.head_dim)
    b, c = (part.view(batch, length, sizes.groups, sizes.state) for part in (b, c))
    if ctx.mixer_packages:  # without gradients: in training the whole mixer is one function
        out, held = mamba_kernels.scan(net.tape, dtype, mamba_kernels.Scan.of(batch, length, sizes))
        state = held[-1:]
        del held
    else:
        out, *state = chunk_scan(values, time, forget, b, c, direct, step, sizes, ctx.cache is not None)
    if ctx.cache is not None:
        ctx.cache.append(net.tape.empty(state[0].shape, state[0].dtype, "cached state"))
    out = out.view(batch, length, sizes.inner)
    out = ops.mul(out, ops.silu(gate), "gated") if norm is None else norm(net, f"{name}.norm", out, gate, sizes)
    net.tape.module = name
    return net.linear(f"{name}.out_proj", ops.to(out, dtype), width, sizes.out_bias)


def gated_norm(net: Modules, name: str, x: Tensor, gate: Tensor, sizes: Mixer) -> Tensor:
    """MambaRMSNormGated: times silu of the gate, then an RMS norm of each group."""
    net.tape.module = name
    weight, dtype, shape = net.parameter(f"{name}.weight", x.shape[-1]), x.dtype, x.shape
    x = ops.to(x, "fp32")
    x = ops.mul(x, ops.silu(ops.to(gate, "fp32")), "gated in fp32")
    grouped = x.view(*shape[:-1], sizes.groups, shape[-1] // sizes.groups)
    variance = ops.mean(ops.square(grouped))
    grouped = ops.mul(grouped, ops.rsqrt(ops.shift(variance)), "normalised")
    x = grouped.view(*shape)
    return ops.mul(weight, ops.to(x, dtype, "normalised"), "output")


def segment_sums(x: Tensor) -> Tensor:
    """``segment_sum`` of (..., N): sums from each position to each later one, (..., N, N)."""
    tape, size = x.tape, x.shape[-1]

    def not_below() -> Tensor:
        ones = tape.empty((size, size), "bool", "ones, before tril")
        lower = tape.empty((size, size), "bool", "lower triangle")
        del ones
        masks.append(lower)
        return tape.empty((size, size), "bool", "upper triangle")

    masks: list[Tensor] = []
    x = ops.masked(recurrence.spread(x, (*x.shape, size)), not_below())
    sums = recurrence.cumulative(x)
    masks.clear()
    sums = ops.masked(sums, not_below())
    del x
    masks.clear()
    return sums


def product(
    a: Tensor, b: Tensor, flops: int, shape: tuple[int, ...], copied: tuple[bool, bool], ordered: bool, what: str
) -> Tensor:
    """``torch.einsum`` of two tensors.

    Those that cannot be viewed as batches of matrices are `copied`, as is the gradient if it is `ordered` otherwise.
    """
    low = ops.low(a), ops.low(b)  # held until the function returns
    a, b = (
        ops.copy(operand, "operand of a product") if copies else operand
        for operand, copies in zip(low, copied, strict=True)
    )
    out = ops.matmul(a, b, flops, shape, what)
    return recurrence.permuted(out) if ordered else out


def chunk_scan(
    values: Tensor,
    time: Tensor,
    forget: Tensor,
    b: Tensor,
    c: Tensor,
    direct: Tensor,
    step: Tensor,
    sizes: Mixer,
    keeps_state: bool,
) -> tuple[Tensor, ...]:
    """``mamba2_chunk_scan`` in fp32: products within chunks, states at their ends, states between them.

    Returns the output, and the last state if it `keeps_state`.
    """
    tape, (batch, length, heads, dim) = values.tape, values.shape
    chunk, state = sizes.chunk, sizes.state
    chunks = ceil_div(length, chunk)
    total, strided = chunks * chunk, batch * chunks > 1
    time = ops.add(time, ops.to(step, time.dtype), "time steps")
    time = recurrence.softplus(time)
    time = ops.clamp(time)
    values = ops.to(values, "fp32")
    b = repeated(ops.to(b, "fp32"), sizes)
    c = repeated(ops.to(c, "fp32"), sizes)
    past = ops.mul(direct.view(heads, 1), recurrence.padded(values, (batch, total, heads, dim)), "direct path")
    values = ops.mul(values, ops.to(time.view(batch, length, heads, 1), "fp32"), "values times time steps")
    decay = ops.mul(forget, ops.to(time, "fp32"), "decay in log space")
    padded = (batch, total)
    values, decay, b, c = (recurrence.padded(part, (*padded, *part.shape[2:])) for part in (values, decay, b, c))
    values = recurrence.permuted(values).view(batch, chunks, chunk, heads, dim)
    b, c = (recurrence.permuted(part).view(batch, chunks, chunk, heads, state) for part in (b, c))
    decay = decay.view(batch, heads, chunks, chunk)
    summed = recurrence.cumulative(decay)
    within = ops.exp(segment_sums(decay))
    blocks, wide = (batch, chunks, heads), 2 * batch * chunks * heads
    products = product(
        c, b, wide * chunk * chunk * state, (*blocks, chunk, chunk), (strided, strided), False, "products within chunks"
    )
    scores = ops.mul(products, within.view(*blocks, chunk, chunk), "attention within chunks")
    diagonal = product(
        scores, values, wide * chunk * chunk * dim, (*blocks, chunk, dim), (False, strided), strided, "output of chunks"
    )
    ends = ops.exp(ops.subtract(ops.sliced(summed, (batch, heads, chunks, 1)), summed))
    decayed = ops.mul(b, ends.view(batch, chunks, chunk, heads, 1), "decayed B")
    states = product(
        values,
        decayed,
        wide * chunk * dim * state,
        (*blocks, dim, state),
        (strided, strided),
        strided,
        "chunks' states",
    )
    first = tape.empty((batch, 1, heads, dim, state), states.dtype, "first state")
    states = recurrence.joined([first, states], (batch, chunks + 1, heads, dim, state))
    between = ops.exp(
        segment_sums(recurrence.padded(ops.sliced(summed, (batch, heads, chunks)), (batch, heads, chunks + 1)))
    )
    later = (batch, chunks + 1, heads, dim, state)
    new_states = product(
        between,
        states,
        2 * batch * heads * (chunks + 1) ** 2 * dim * state,
        later,
        (False, batch > 1),
        batch > 1,
        "states between chunks",
    )
    states = ops.sliced(new_states, (*blocks, dim, state))
    read = ops.exp(summed)
    read_states = product(
        c, states, wide * chunk * dim * state, (*blocks, chunk, dim), (strided, strided), strided, "output of states"
    )
    off = ops.mul(
        read_states.view(batch, chunks, chunk, heads, dim), read.view(batch, chunks, chunk, heads, 1), "decayed output"
    )
    out = ops.copy(ops.add(diagonal.view(*off.shape), off, "output of all chunks"), "output in order")
    out = out.view(batch, total, heads, dim)
    out = ops.add(out, past, "output")
    if total > length:
        out = ops.sliced(out, (batch, length, heads, dim))
    last = (ops.sliced(new_states, (batch, heads, dim, state)),) if keeps_state else ()
    return out, *last


def repeated(x: Tensor, sizes: Mixer) -> Tensor:
    """``repeat_interleave`` from groups to heads: always a copy."""
    groups = sizes.heads // sizes.groups
    return ops.repeat_heads(x, groups, copies=True) if groups > 1 else ops.copy(x, "heads repeated")
