"""A Mamba 2 mixer by the kernels of mamba-ssm and causal-conv1d.

In training everything behind its first projection is one autograd function, which makes nearly all of it again in
backward.

Read off mamba-ssm 2.3.2 (mamba_ssm/ops/triton/ssd_combined.py: MambaSplitConv1dScanCombinedFn,
_mamba_chunk_scan_combined_fwd and _bwd). Its kernels are Triton's, so no trace sees them.
"""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers.mamba_sizes import Mixer
from vramplan.step_time.kernels import ATTENTION, BACKWARD
from vramplan.units import ceil_div

MULTIPROCESSORS = 132
"""Of an H100, taken for every GPU: how many parts the sums over heads are divided into (nsplits)."""
WORKSPACE = "workspace"


class Scan(NamedTuple):
    """Shapes of a scan's tensors."""

    rows: tuple[int, ...]
    steps: tuple[int, ...]
    states: tuple[int, ...]
    within: tuple[int, ...]
    parts: int

    @classmethod
    def of(cls, batch: int, length: int, sizes: Mixer) -> Scan:
        """The shapes for (B, S)."""
        chunks, each = ceil_div(length, sizes.chunk), sizes.heads // sizes.groups
        per_program = max(min(ceil_div(batch * chunks * sizes.heads, MULTIPROCESSORS), each), 1)
        return cls(
            (batch, length, sizes.heads, sizes.head_dim),
            (batch, sizes.heads, chunks, sizes.chunk),
            (batch, chunks, sizes.heads, sizes.head_dim, sizes.state),
            (batch, chunks, sizes.groups, sizes.chunk, sizes.chunk),
            ceil_div(each, per_program),
        )


def scan(tape: Tape, dtype: str, shapes: Scan) -> tuple[Tensor, list[Tensor]]:
    """``_mamba_chunk_scan_combined_fwd``: the output, and what its caller holds besides."""
    steps = [tape.empty(shapes.steps, "fp32", "time steps and summed decay", WORKSPACE) for _ in range(2)]
    states = tape.empty(shapes.states, "fp32", "states of all chunks in fp32", WORKSPACE)
    passed = tape.empty(shapes.states, dtype, "states of all chunks", WORKSPACE)
    batch, _, heads, dim, state = shapes.states
    last = tape.empty((batch, heads, dim, state), "fp32", "last state")
    del states
    within = tape.empty(shapes.within, "fp32", "products within chunks", WORKSPACE)
    out = tape.empty(shapes.rows, dtype, "output of the scan")
    del within
    return out, [*steps, passed, last]


def fused(
    projected: Tensor,
    kernel: Tensor,
    shift: Tensor | None,
    step: Tensor,
    forget: Tensor,
    direct: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: Mixer,
) -> Tensor:
    """``mamba_split_conv1d_scan_combined``: convolution, scan, gated norm and the last projection.

    Saves what was projected, the scan's output, the lengths of its rows and the weights; backward gives every weight a
    gradient, needed or not.
    """
    tape, (batch, length, _) = projected.tape, projected.shape
    inputs = tuple(
        one for one in (projected, kernel, shift, step, forget, direct, norm, weight, bias) if one is not None
    )
    likes, needs = [one.like for one in inputs], [one.node is not None for one in inputs]
    dtype, shapes, rows = projected.dtype, Scan.of(batch, length, sizes), batch * length
    mixed, inner = (batch, length, sizes.convolved), (batch, length, sizes.inner)
    width = weight.shape[0]
    flops = 2 * rows * (2 * sizes.inner * (sizes.state + sizes.chunk) + sizes.inner * width)
    moved = 2 * projected.num_bytes
    shared = (batch, length, sizes.groups, sizes.state)

    def backward(grad: Tensor) -> Grads:
        tape.work(3 * flops, 4 * moved, dtype, 20, ATTENTION + BACKWARD)
        again = [tape.empty(inner, dtype, "normed output again"), tape.empty(mixed, dtype, "convolution again")]
        result = tape.empty(likes[0].shape, dtype, "gradient of what was projected")
        of_mixed = tape.empty(mixed, dtype, "gradient of the convolution's output")
        of_normed = tape.empty(inner, dtype, "gradient of the normed output")
        of_out = tape.empty(inner, dtype, "gradient of the scan's output")
        steps = [tape.empty((batch, length, sizes.heads), dtype, "time steps", WORKSPACE)]
        steps += [tape.empty(shapes.steps, "fp32", "time steps and summed decay", WORKSPACE) for _ in range(2)]
        within = tape.empty(shapes.within, "fp32", "products within chunks", WORKSPACE)
        before = tape.empty(shapes.states, "fp32", "states of all chunks in fp32", WORKSPACE)
        states = tape.empty(shapes.states, "fp32", "states of all chunks in fp32", WORKSPACE)
        del before
        of_states = tape.empty(shapes.states, "fp32", "gradients of the states in fp32", WORKSPACE)
        low = [tape.empty(shapes.states, dtype, "states and their gradients", WORKSPACE) for _ in range(2)]
        del states, of_states
        split = (batch, length, shapes.parts, sizes.groups, sizes.state)
        of_shared = []
        for _ in range(2):
            parts = tape.empty(split, "fp32", "gradient of B or C by parts", WORKSPACE)
            of_shared.append(tape.empty(shared, "fp32", "gradient of B or C", WORKSPACE))
            del parts
        by_parts = (*shapes.within[:2], shapes.parts, *shapes.within[2:])
        of_within = tape.empty(by_parts, "fp32", "gradient of products by parts", WORKSPACE)
        of_within = tape.empty(shapes.within, "fp32", "gradient of products", WORKSPACE)
        steps += [tape.empty(shapes.steps, "fp32", "gradient of the decay", WORKSPACE) for _ in range(3)]
        del of_within, of_shared, low, within, steps, of_out, of_normed
        found: Grads = [result]
        for like, need in zip(likes[1:], needs[1:], strict=True):
            one = tape.empty(like.shape, "fp32" if len(like.shape) == 3 else like.dtype, "gradient")
            found.append(ops.fit(one, like) if need else None)
            del one
        del again, of_mixed
        return [one if need else None for one, need in zip(found, needs, strict=True)]

    node = tape.node(inputs, backward)
    with tape.no_grad():
        convolved = tape.empty(mixed, dtype, "convolution over time")
        rows_out, held = scan(tape, dtype, shapes)
        tape.work(flops, moved, dtype, 8, ATTENTION)
        normed = tape.empty(inner, dtype, "normed output")
        lengths = tape.empty((rows * sizes.groups,), "fp32", "reciprocal lengths")
        computed = tape.autocast or dtype
        normed, low_weight = ops.to(normed, computed), ops.to(weight.detach(), computed)
        low_bias = None if bias is None else ops.to(bias.detach(), computed)
    out = ops.output(node, tape, (batch, length, width), computed, "output")
    kept = (projected, kernel, shift, rows_out, forget, direct, step, norm, lengths, low_weight, low_bias)
    tape.save(node, *(one for one in kept if one is not None))
    del convolved, held, normed
    return out
