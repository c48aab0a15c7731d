"""``F.scaled_dot_product_attention`` as on CUDA: which kernel the GPU runs, and what that kernel allocates.

The choice follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the rest attention.cpp (torch 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from vramplan.dataclass import dataclass
from vramplan.inputs.gpu import Gpu
from vramplan.memory.fused_attention import FusedAttention, fused_attention
from vramplan.torch_backend.trace.cuda_autocast import cast, low_dtype, without_autocast

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
MASK_ALIGNMENT = 8
"""preprocess_mask: mem_eff_alignment."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Arguments of one attention call, (batch, heads, length, head dim) each, as the checks of sdp_utils.cpp see it."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    """enable_gqa: key and value may have fewer heads."""

    @property
    def wants_grad(self) -> bool:
        """input_requires_grad."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, self.v))

    def same_heads(self, grouped_fits: bool) -> bool:
        """check_batch_size_and_num_heads_dense; heads of size 1 do not broadcast here."""
        q, k, v = self.q, self.k, self.v
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            return False
        if self.grouped and grouped_fits:
            return k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0
        return q.shape[1] == k.shape[1] == v.shape[1]

    def dense(self) -> bool:
        """check_last_dim_stride_equals_1_dense."""
        tensors = [self.q, self.k, self.v, *([] if self.mask is None else [self.mask])]
        return all(x.stride(-1) == 1 for x in tensors)


def can_cudnn(call: AttentionCall, gpu: FusedAttention) -> bool:
    """can_use_cudnn_attention, on GPUs where it comes first; a mask that needs a gradient does not fit."""
    return (
        not (call.mask is not None and call.mask.requires_grad and torch.is_grad_enabled())
        and gpu.runs_cudnn(call.q.shape[-1], call.v.shape[-1], call.dropout, call.k.shape[-2])
        and call.q.shape[-1] == call.k.shape[-1]
        and call.q.dtype in HALF
        and call.same_heads(grouped_fits=True)
        and call.dense()
    )


def can_flash(call: AttentionCall, gpu: FusedAttention) -> bool:
    """can_use_flash_attention."""
    dim = call.q.shape[-1]
    return (
        call.mask is None
        and dim == call.k.shape[-1]
        and gpu.runs_flash(dim, call.v.shape[-1], call.dropout, call.wants_grad)
        and not (call.causal and call.q.shape[-2] != call.k.shape[-2])
        and call.q.dtype in HALF
        and call.same_heads(grouped_fits=True)
        and call.dense()
    )


def can_efficient(call: AttentionCall, capability: int) -> bool:
    """can_use_mem_efficient_attention: no grouped heads, widths aligned for tensor cores."""
    half = call.q.dtype in HALF
    tensor_cores = capability >= 80 or (capability >= 70 and half)
    alignment = max(4 if capability >= 80 else 1, (8 if half else 4) if tensor_cores else 1)
    return (
        capability >= 50
        and call.q.shape[-1] == call.k.shape[-1]
        and call.q.shape[-1] % alignment == 0
        and call.v.shape[-1] % alignment == 0
        and (call.q.dtype in (torch.float16, torch.float32) or (call.q.dtype == torch.bfloat16 and capability >= 80))
        and call.same_heads(grouped_fits=False)
        and call.dense()
    )


def choose(call: AttentionCall, gpu: Gpu) -> str:
    """The first usable kernel in the order cuDNN's, flash, efficient, math (select_sdp_backend)."""
    major, minor = gpu.capability
    kernels = fused_attention(gpu)
    if can_cudnn(call, kernels):
        return "cudnn"
    if can_flash(call, kernels):
        return "flash"
    capability = 10 * major + minor if gpu.vendor == "NVIDIA" else 90
    return "efficient" if can_efficient(call, capability) else "math"


# -- the kernels -------------------------------------------------------------------------------------------------------


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """convert_boolean_attn_mask: where(mask, 0, -inf), both numbers as tensors."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    low = torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype, device=mask.device), low)


def flash(call: AttentionCall, scale: float | None) -> torch.Tensor:
    """The flash kernel, with widths padded to a multiple of 8 (pad_last_dim, post_process_flash_output)."""
    q, k, v, dim = call.q, call.k, call.v, call.q.shape[-1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    if dim % 8:
        q, k, v = (F.pad(x, (0, 8 - dim % 8)) for x in (q, k, v))
    out: torch.Tensor = aten._scaled_dot_product_flash_attention(
        q, k, v, call.dropout, call.causal, False, scale=scale
    )[0]
    return out if dim % 8 == 0 else out[..., :dim]


def cudnn(call: AttentionCall, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """The kernel of cuDNN; the mask is not padded."""
    if mask is not None:
        mask = mask.expand(call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2])
    out: torch.Tensor = aten._scaled_dot_product_cudnn_attention(
        call.q, call.k, call.v, mask, call.wants_grad, call.dropout, call.causal, False, scale=scale
    )[0]
    return out


def efficient(call: AttentionCall, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """The memory-efficient kernel; a mask whose rows are not aligned is padded (preprocess_mask, pad_bias)."""
    q, k = call.q, call.k
    if mask is not None:
        if mask.stride(-1) != 1 or any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]):
            last = mask.shape[-1]
            mask = F.pad(mask, (0, MASK_ALIGNMENT - last % MASK_ALIGNMENT))[..., :last]
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    out: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        q, k, call.v, mask, call.wants_grad, call.dropout, call.causal, scale=scale
    )[0]
    return out


class SafeSoftmax(torch.autograd.Function):
    """aten::_safe_softmax: a softmax whose rows of -inf become 0 in place; it saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The probabilities."""
        soft = torch.softmax(x, -1)
        masked = torch.isneginf(x)
        rows = torch.all(masked, -1, keepdim=True)
        zero = torch.scalar_tensor(0.0, dtype=soft.dtype, device=soft.device)
        torch.where(rows, zero, soft, out=soft)
        ctx.save_for_backward(soft)
        ctx.dtype = x.dtype
        return soft

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = aten._softmax_backward_data(grad, ctx.saved_tensors[0], -1, ctx.dtype)
        return out


def math_attention(call: AttentionCall, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """at::_scaled_dot_product_attention_math, operation by operation.

    Halves are computed in fp32 (allowFP16BF16ReductionMathSDP is off); dropout is CUDA's; tensors that C++ frees at
    the end of its scope are freed there here, too.
    """
    query, key, value = call.q, call.k, call.v
    dtype = query.dtype
    wide = torch.float32 if dtype in HALF else dtype
    q_wide, k_wide, v_wide = query.to(wide), key.to(wide), value.to(wide)
    factor = math.sqrt(abs(scale)) if scale is not None else math.sqrt(1 / math.sqrt(query.shape[-1]))
    q = aten.mul.Scalar(q_wide, -factor if scale is not None and scale < 0 else factor)
    if call.causal:
        allowed = torch.ones((q.shape[-2], k_wide.shape[-2]), dtype=torch.bool, device=q.device).tril()
        mask = additive(allowed, q.dtype)
        del allowed
    k, v = k_wide, v_wide
    if call.grouped and k_wide.shape[-3] != q.shape[-3]:  # pre_process_group_query_attention_input
        repeats = q.shape[-3] // k_wide.shape[-3]
        k, v = k_wide.repeat_interleave(repeats, -3), v_wide.repeat_interleave(repeats, -3)
    weights = torch.matmul(q, aten.mul.Scalar(k.transpose(-2, -1), factor))
    if mask is not None:
        weights.add_(mask)
    weights = SafeSoftmax.apply(weights)
    if call.dropout > 0:
        weights = torch.native_dropout(weights, call.dropout, True)[0]
    returned = weights.to(dtype)
    output = torch.matmul(weights, v).to(dtype)
    del weights, v, k, q, mask, v_wide, k_wide, q_wide, returned  # C++ destroys them last to first
    return output


def sdpa_for(gpu: Gpu) -> Callable[..., torch.Tensor]:
    """A stand-in for ``F.scaled_dot_product_attention`` on the GPU."""

    def sdpa(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        low = low_dtype()
        if low is not None:  # one of the operations that CUDA's autocast lowers
            query, key, value, attn_mask = (cast(x, low) for x in (query, key, value, attn_mask))
        with without_autocast():
            call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
            kernel = choose(call, gpu)
            if kernel == "flash":
                return flash(call, scale)
            mask = additive(attn_mask, query.dtype)
            if kernel == "cudnn":
                return cudnn(call, mask, scale)
            if kernel == "efficient":
                return efficient(call, mask, scale)
            return math_attention(call, mask, scale)

    return sdpa
