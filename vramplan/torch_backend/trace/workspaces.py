"""Memory that CUDA's kernels allocate and free themselves, which a trace does not see."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch

from vramplan.memory.buffer import Buffer
from vramplan.memory.kernel_buffers import MOST_UNSORTED, flash_width, norm_parts
from vramplan.torch_backend.trace import flash_attn_stub
from vramplan.units import round_up

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
"""Operations that run in cuBLAS."""


class Workspace(NamedTuple):
    """One block."""

    name: str
    size: int | Buffer
    """Bytes, or what they follow from on a GPU."""
    passes: bool = False
    """Whether it is freed before the next is allocated."""


def _flash_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, *_: Any) -> list[Workspace]:
    """SDPA's flash kernel, (batch, heads, length, dim): row sums, and an fp32 dq; positions first (mha_bwd)."""
    batch, heads, length, dim = q.shape
    rows, width = batch * heads * round_up(length, 128), flash_width(dim)
    copies = [
        Workspace(f"{name} with positions first", x.numel() * x.element_size())
        for name, x in (("gradient", grad), ("output", out))
        if not x.transpose(1, 2).is_contiguous()
    ]
    expanded = _expanded(heads, k.shape[1], batch * k.shape[2], dim, k)
    return [*copies, Workspace("row sums", rows * 4), Workspace("dq in fp32", rows * width * 4), *expanded]


def _flash_forward(q: Any, k: Any, v: Any, dropout: float = 0.0, *_: Any) -> list[Workspace]:
    """Results of parts of the keys (set_params_splitkv)."""
    numbers = *q.shape[:3], k.shape[2], q.shape[3]
    return [] if dropout else _splits(numbers, q)


def _splits(numbers: tuple[int, ...], q: Any) -> list[Workspace]:
    kernels = ("flash split sums", "flash splits")
    return [Workspace(kernel, Buffer(kernel, numbers, NAMES[q.dtype])) for kernel in kernels]


def _package_forward(q: Any, k: Any, v: Any, lengths: Any, dropout: float) -> list[Workspace]:
    """flash-attn's kernel, (batch, length, heads, dim); it does not split packed rows."""
    batch_only = lengths is None and not dropout
    return _splits((q.shape[0], q.shape[2], q.shape[1], k.shape[1], q.shape[3]), q) if batch_only else []


def _package_backward(grad: Any, q: Any, k: Any, *rest: Any) -> list[Workspace]:
    """flash-attn's kernels, (batch, length, heads, dim) or (tokens, heads, dim); row sums are one of their results."""
    heads, dim = q.shape[-2:]
    lengths = rest[-1]
    tokens = q.numel() // (heads * dim)
    rows = q.shape[0] * round_up(q.shape[1], 128) if lengths is None else tokens + 128 * (lengths.shape[0] - 1)
    return [
        Workspace("dq in fp32", rows * heads * flash_width(dim, 192) * 4),
        *_expanded(heads, k.shape[-2], tokens, dim, k),
    ]


def _expanded(heads: int, heads_k: int, tokens_k: int, dim: int, k: Any) -> list[Workspace]:
    """With grouped heads dk and dv of all heads (flash_api.cpp: dk_expanded, dv_expanded)."""
    size = tokens_k * heads * dim * k.element_size()
    return [] if heads_k == heads else [Workspace(f"{name} of all heads", size) for name in ("dk", "dv")]


def _cudnn_backward(grad: Any, q: Any, *_: Any) -> list[Workspace]:
    """An fp32 dq and row sums in one block (cudnn/MHA.cpp: run_cudnn_SDP_bprop); what its plans need is not known."""
    return [Workspace("dq in fp32 and row sums", 4 * prod(q.shape[:3]) * (q.shape[3] + 1))]


def _efficient_forward(q: Any, k: Any, v: Any, *_: Any) -> list[Workspace]:
    """An fp32 output of wide heads (mem_eff_attention/kernel_forward.h: kNeedsOutputAccumulatorBuffer)."""
    wide = q.dtype in HALF and max(q.shape[-1], v.shape[-1]) > 128
    return [Workspace("output in fp32", 4 * prod(q.shape[:3]) * v.shape[-1])] if wide else []


def _efficient_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any) -> list[Workspace]:
    """Row sums, in fp32 of a product as large as the output, and accumulators (cuda/attention_backward.cu)."""
    batch, heads, length, dim = q.shape
    product = [] if q.dtype in HALF else [Workspace("gradient times output", grad.numel() * 4, passes=True)]
    numbers = batch, heads, length, k.shape[2], dim, v.shape[-1]
    accumulators = Buffer("efficient backward", numbers, NAMES[q.dtype])
    return [*product, Workspace("row sums", batch * heads * length * 4), Workspace("accumulators", accumulators)]


def _embedding_backward(grad: Any, indices: Any, num_weights: int, *_: Any) -> list[Workspace]:
    """Sorting by token and sums of partial segments in fp32 (cuda/EmbeddingBackwardKernel.cu)."""
    tokens, width = indices.numel(), grad.shape[-1]
    partial = Buffer("embedding", (tokens, num_weights, width), NAMES[grad.dtype])
    indices_sorted = [Workspace("sorted indices", 2 * tokens * 8)] if tokens > MOST_UNSORTED else []
    return [*indices_sorted, Workspace("partial sums in fp32", partial)]


def _sum(x: Any, dims: Any = None, *_: Any) -> list[Workspace]:
    """Partial sums of a sum over rows (cuda/Reduce.cuh)."""
    kept = [size for number, size in enumerate(x.shape) if number not in {dim % x.dim() for dim in dims or ()}]
    reduces_first = dims and x.dtype in NAMES and x.dim() and -1 % x.dim() not in {dim % x.dim() for dim in dims}
    if not reduces_first or not x.is_contiguous() or prod(kept) == 0:
        return []
    return [Workspace("partial sums", Buffer("sum", (x.numel() // prod(kept), prod(kept)), NAMES[x.dtype]))]


def _softmax_backward(grad: Any, *_: Any) -> list[Workspace]:
    """The product of gradient and probabilities (cuda/SoftMax.cu: softmax_backward_cuda_out)."""
    return [Workspace("gradient times probabilities", grad.numel() * grad.element_size())]


def _norms(tensors: Any, *_: Any) -> list[Workspace]:
    """Partial sums of norms (cuda/ForeachReduceOp.cu)."""
    return [Workspace("parts of norms", norm_parts(len(tensors), max(tensor.numel() for tensor in tensors)))]


def _masked_scatter(x: Any, mask: Any, *_: Any) -> list[Workspace]:
    """Where every element stands among those of the mask, and the mask in full (cuda/IndexKernel.cpp)."""
    return [Workspace("prefix sums", x.numel() * 8), Workspace("mask in full", x.numel())]


def _log_sum_exp(x: Any, *_: Any) -> list[Workspace]:
    """The highest elements, then the exponentials of all (native/ReduceOps.cpp: logsumexp_out_impl)."""
    size = x.element_size()
    return [Workspace("highest", x.numel() // x.shape[-1] * size), Workspace("exponentials", x.numel() * size)]


def _log_softmax(x: Any, *_: Any) -> list[Workspace]:
    """A copy of what is not contiguous (cuda/SoftMax.cu: host_softmax)."""
    return [] if x.is_contiguous() else [Workspace("input copied", x.numel() * x.element_size())]


def _log_softmax_backward(grad: Any, *_: Any) -> list[Workspace]:
    """The same of a gradient."""
    return _log_softmax(grad)


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any
) -> list[Workspace]:
    """A copy of a permuted input of one dimension (Convolution.cpp: "avoid accidentally going through NHWC").

    Not of convolutions of single channels.
    """
    return _in_order(x, weight) if rest[-1] < weight.shape[0] else []


def _convolution_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> list[Workspace]:
    """The same, and of a permuted gradient."""
    return [*_in_order(x, weight), *_in_order(grad, weight)] if rest[-2] < weight.shape[0] else []


def _in_order(x: Any, weight: Any) -> list[Workspace]:
    is_copied = weight.dim() == 3 and not x.is_contiguous()
    return [Workspace("copy with channels first", x.numel() * x.element_size())] if is_copied else []


def _ctc_backward(grad: Any, log_probs: Any, *rest: Any) -> list[Workspace]:
    """Beta, and sums over the blanks with their exponentials (cuda/LossCTC.cu: ctc_loss_backward_gpu_template)."""
    alpha = rest[4]
    frames, samples, classes = log_probs.shape
    blanks = samples * frames * (alpha.shape[-1] // 2 + 1) * 4
    is_large = 2 * frames + 24 * samples // 10 + 2 * classes // 10 > 450
    sums = [Workspace("blanks", blanks), Workspace("exponentials of blanks", blanks)] if is_large else []
    return [Workspace("beta", alpha.numel() * 4), *sums]


RULES: dict[Any, Callable[..., list[Workspace]]] = {
    aten._scaled_dot_product_flash_attention.default: _flash_forward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.sum.dim_IntList: _sum,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._foreach_norm.Scalar: _norms,
    aten.masked_scatter.default: _masked_scatter,
    aten.logsumexp.default: _log_sum_exp,
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
}


def workspaces(func: Any, args: Any, out: Any) -> list[Workspace]:
    """The memory that the CUDA implementation of `func` allocates inside."""
    if func is aten.masked_select.default:  # indexes by the positions of all selected elements, a number per dimension
        return [Workspace("positions", out.numel() * args[0].dim() * 8)]
    rule = RULES.get(func)
    if rule is None and func.namespace == flash_attn_stub.NAMESPACE:
        rule = _package_backward if func.__name__.startswith("backward") else _package_forward
    return rule(*args) if rule is not None else []
