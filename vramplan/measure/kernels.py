"""What CUDA's kernels do otherwise than the operations that a trace sees: workspaces, statistics' dtype, inner tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from vramplan.roofline import Kernel
from vramplan.units import ceil_div, round_up

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

Workspace = list[tuple[str, int]]


# -- memory that a kernel takes for itself, and gives back when it is done ----------------------------------------------


def _flash_backward(grad: Any, q: Any, k: Any, *_: Any) -> Workspace:
    """Row sums and dq in fp32; with grouped heads dk and dv of all heads (flash_attn/flash_api.cpp: mha_bwd)."""
    if q.dim() == 3:  # variable length: tokens x heads x dim, padded by 128 rows a sequence
        tokens, heads, dim = q.shape
        batch, length = 1, tokens
    else:
        batch, heads, length, dim = q.shape
    rows = round_up(length, 128)
    width = round_up(dim, 32) if dim <= 192 else 256
    found = [("row sums", batch * heads * rows * 4), ("dq in fp32", batch * heads * rows * width * 4)]
    if k.shape[-2 if q.dim() == 3 else 1] != heads:
        expanded = batch * length * heads * dim * k.element_size()
        found += [("dk of all heads", expanded), ("dv of all heads", expanded)]
    return found


def _efficient_backward(grad: Any, q: Any, *_: Any) -> Workspace:
    """Row sums, and an fp32 accumulator of dq where q is not fp32 itself (cuda/attention_backward.cu)."""
    batch, heads, length, dim = q.shape
    found = [("row sums", batch * heads * length * 4)]
    if q.dtype in HALF:
        found.append(("dq in fp32", batch * heads * length * dim * 4))
    return found


def _embedding_backward(grad: Any, indices: Any, num_weights: int, *_: Any) -> Workspace:
    """Sorting by token and sums of partial segments in fp32, above 3072 tokens (cuda/Embedding.cu: the fast path ends;
    cuda/EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel)."""
    tokens, width = indices.numel(), grad.shape[-1]
    if tokens <= 3072:
        return []
    segments = min(tokens, num_weights)
    partial = ceil_div(tokens, 10) + segments
    return [
        ("sorted indices", 2 * tokens * 8),
        ("segments", 3 * segments * 8),
        ("partial offsets", partial * 8),
        ("partial sums in fp32", partial * width * 4),
    ]


WORKSPACES: dict[Any, Callable[..., Workspace]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
}


def workspaces(func: Any, args: Any) -> Workspace:
    """What the CUDA implementation of `func` allocates inside."""
    rule = WORKSPACES.get(func)
    return rule(*args) if rule is not None else []


# -- outputs that differ -------------------------------------------------------------------------------------------------


def as_on_cuda(func: Any, out: Any) -> Any:
    """Layer norm keeps mean and 1/sigma in fp32 (cuda/layer_norm_kernel.cu: acc_type), on the CPU in the input's dtype."""
    if func is aten.native_layer_norm.default and out[1].dtype in HALF:
        return (out[0], *(torch.empty_like(x, dtype=torch.float32) for x in out[1:]))
    return out


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """at::_safe_softmax is one operation to autograd and five inside (native/SoftMax.cpp): rows of -inf become 0."""
    out = torch.softmax(x, dim, dtype=dtype)
    masked = x.eq(float("-inf"))
    rows = torch.all(masked, dim=dim, keepdim=True)
    return torch.where(rows, torch.zeros((), dtype=out.dtype, device=out.device), out)


INSTEAD: dict[Any, Callable[..., Any]] = {aten._safe_softmax.default: _safe_softmax}


# -- work ----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _is_view(func: Any) -> bool:
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def work(func: Any, args: Any, kwargs: Any, out: Any) -> Kernel:
    """Operations of a matrix product, as torch.utils.flop_counter counts them; bytes read and written."""
    if _is_view(func):
        return Kernel(0, 0, 0, "fp32")
    count = flop_registry.get(func._overloadpacket)
    flops = int(count(*args, **kwargs, out_val=out)) if count is not None else 0
    moved = 0
    dtype = "fp32"
    for group in (args, out if isinstance(out, (tuple, list)) else (out,)):
        for one in group:
            for leaf in one if isinstance(one, (tuple, list)) else (one,):
                if isinstance(leaf, torch.Tensor):
                    moved += leaf.numel() * leaf.element_size()
                    dtype = _NAMES.get(leaf.dtype, dtype)
    return Kernel(flops, moved, 1, dtype)
