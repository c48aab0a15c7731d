"""Kernels of a step, and how long each runs on a GPU.

A kernel takes the longer of its arithmetic and its memory traffic, plus a fixed time. The rates that kernels reach are
shares of the GPU's dense peak and of its memory bandwidth (:mod:`vramplan.step_time.rates`). The host launches kernels
one after another, ahead of the GPU: a micro-step takes the longer of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.step_time.rates import Rates, rates_of

ELEMENTWISE = "elementwise"
"""Every kernel that is not one of the others: bound by memory."""
MATMUL = "matmul"
DEQUANTIZE = "dequantize"
"""bitsandbytes' copy of a four-bit weight in the dtype of its product."""
ATTENTION, CAUSAL_ATTENTION = "attention", "causal attention"
"""Fused attention (flash, memory-efficient); a causal kernel skips the upper half of the scores."""
BACKWARD = " backward"
"""Added to the kind of a fused attention kernel's backward."""


class Kernel(NamedTuple):
    """Work of one op."""

    flops: int
    """Floating-point operations of matrix products; of causal attention as if nothing were skipped."""
    moved_bytes: int
    """Bytes read and written."""
    launches: int
    dtype: str
    kind: str = ELEMENTWISE
    results: int = 0
    """Elements of a matrix product's result, of all launches."""


def computed_flops(kernel: Kernel) -> float:
    """Operations that a kernel does: causal attention skips half of the scores."""
    return kernel.flops / 2 if kernel.kind.startswith(CAUSAL_ATTENTION) else kernel.flops


def peak_flops(kernel: Kernel, gpu: Gpu) -> float:
    """The GPU's dense peak in the kernel's dtype, in FLOP/s; that of fp32 for one without units of its own."""
    return gpu.flops_per_second.get(kernel.dtype, gpu.flops_per_second["fp32"])


def kernel_seconds(kernel: Kernel, gpu: Gpu, rates: Rates) -> float:
    """Time of a kernel on the GPU, in seconds."""
    bandwidth = gpu.bandwidth_bytes_per_second * (rates.dequantize if kernel.kind == DEQUANTIZE else rates.bandwidth)
    traffic = kernel.moved_bytes / bandwidth
    if not kernel.flops:
        return traffic + kernel.launches * rates.kernel_seconds
    at_peak = computed_flops(kernel) / peak_flops(kernel, gpu)
    if kernel.kind == MATMUL:
        launches = max(1, kernel.launches)
        results = max(1, kernel.results)
        depth = kernel.flops / (2 * results)
        idle = min(1.0, rates.matmul_results * launches / results)  # cuBLAS splits the depth of smaller results
        arithmetic = at_peak / rates.matmul * (1 + rates.matmul_depth / depth) * (1 + idle)
    else:
        arithmetic = at_peak / (rates.attention_backward if kernel.kind.endswith(BACKWARD) else rates.attention)
    return max(arithmetic, traffic) + kernel.launches * rates.kernel_seconds


Kernels = Sequence[tuple[Kernel, int]]
"""Kernels, each with its number of runs."""
Runs = Sequence[tuple[int, int]]
"""Numbers of kernels, each with its number of runs."""


def micro_step_seconds(
    kernels: Sequence[Kernel], forward: Runs, backward: Runs, gpu: Gpu, host_seconds: float = 0.0
) -> tuple[float, float]:
    """Times of the forward and of the backward: the GPU's, or the host's if both together take longer there.

    Args:
        kernels: the distinct kernels.
        forward: which of them run in the forward.
        backward: which of them run in the backward.
        gpu: the GPU.
        host_seconds: what the host does besides running ops.
    """
    rates = rates_of(gpu)
    each = [kernel_seconds(kernel, gpu, rates) for kernel in kernels]
    # fsum: sum() rounds otherwise from Python 3.12 on, and answers would differ in their last digit
    first, second = (fsum(runs * each[number] for number, runs in part) for part in (forward, backward))
    launches = sum(runs * kernels[number].launches for part in (forward, backward) for number, runs in part)
    on_host = launches * rates.launch_seconds + host_seconds
    slower = max(1.0, on_host / (first + second)) if launches else 1.0
    return first * slower, second * slower


def flops(kernels: Kernels) -> int:
    """Floating-point operations of the matrix products."""
    return sum(kernel.flops * times for kernel, times in kernels)
