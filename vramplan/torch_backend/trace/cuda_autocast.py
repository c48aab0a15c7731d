"""Emulate CUDA's autocast on the CPU: its lists of operations and its weight cache, under the CPU's dispatch key.

The lists are those of aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP, _FP32, _FP32_SET_OPT_DTYPE,
_DIFFERENT_REDISPATCH_SIGNATURE, _PROMOTE; torch 2.13). The CPU's own lists differ, so its other entries fall through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_GUARD = torch._C._ExcludeDispatchKeyGuard

LOWER = """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot
""".split()  # noqa: SIM905
FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
""".split()  # noqa: SIM905
FP32_BY_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()  # noqa: SIM905
NORMS = ["norm.Scalar", "norm.ScalarOpt_dim"]
PROMOTE = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()  # noqa: SIM905
CPU_ONLY = """
avg_pool3d binary_cross_entropy polar quantile quantile.scalar nanquantile nanquantile.scalar stft stft.center trace
view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve orgqr ormqr pinverse max_pool3d max_unpool2d
max_unpool3d adaptive_avg_pool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
replication_pad3d ctc_loss.IntList ctc_loss.Tensor cat stack index_copy upsample_nearest1d.vec upsample_nearest2d.vec
upsample_bilinear2d.vec _addmm_activation adaptive_max_pool3d conv1d.padding conv2d.padding conv3d.padding
cross_entropy_loss fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2
fft_irfftn fft_rfft fft_rfft2 fft_rfftn grid_sampler_2d grid_sampler_3d qr multilabel_margin_loss_forward
linalg_eigvals linalg_inv linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvalsh
linalg_inv_ex linalg_householder_product linalg_tensorinv linalg_tensorsolve fake_quantize_per_tensor_affine linalg_qr
linalg_cholesky_ex linalg_svd linalg_eig linalg_eigh linalg_lstsq geqrf _lu_with_info svd triangular_solve
scaled_dot_product_attention _native_multi_head_attention
""".split()  # noqa: SIM905

_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Cache of cast weights by id, as in autocast_mode.cpp; cleared when the outermost autocast ends."""


def eligible(x: Any) -> bool:
    """Whether autocast casts a value: a floating-point tensor other than float64."""
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64


def cast(x: Any, dtype: torch.dtype) -> Any:
    """An argument in `dtype`; fp32 leaves that require gradients are cast once and cached (cached_cast)."""
    if not eligible(x) or x.dtype == dtype:
        return x
    cached = dtype != torch.float32 and x.dtype == torch.float32 and x.requires_grad and x.is_leaf and not x._is_view()
    if not cached or not torch.is_autocast_cache_enabled():
        return x.to(dtype)
    entry = _weights.get(id(x))
    if entry is None:
        entry = _weights[id(x)] = (x, x.to(dtype))
    return entry[1]


def low_dtype() -> torch.dtype | None:
    """The dtype that autocast lowers to; None outside autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def without_autocast() -> Any:
    """A context in which autocast casts nothing."""
    return _GUARD(_KEYS)


def _all(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: cast(x, dtype), values)


def _lower(op: Any, *args: Any, **kwargs: Any) -> Any:
    with _GUARD(_KEYS):
        dtype = torch.get_autocast_dtype("cpu")
        return op(*_all(args, dtype), **_all(kwargs, dtype))


def _fp32(op: Any, *args: Any, **kwargs: Any) -> Any:
    with _GUARD(_KEYS):
        return op(*_all(args, torch.float32), **_all(kwargs, torch.float32))


def _fp32_by_dtype(op: Any, *args: Any, **kwargs: Any) -> Any:
    """These operations compute in fp32 through their `dtype` argument, unless the caller sets it."""
    with _GUARD(_KEYS):
        if args and eligible(args[0]):
            index = [argument.name for argument in op._schema.arguments].index("dtype")
            if index >= len(args):
                kwargs["dtype"] = kwargs.get("dtype") or torch.float32
            elif args[index] is None:
                args = (*args[:index], torch.float32, *args[index + 1 :])
        return op(*args, **kwargs)


def _norm(op: Any, *args: Any, **kwargs: Any) -> Any:
    with _GUARD(_KEYS):
        x, *rest = args
        if not eligible(x):
            return op(*args, **kwargs)
        if op._overloadname == "Scalar":
            return aten.norm.ScalarOpt_dtype(x, rest[0] if rest else 2, dtype=torch.float32)
        return aten.norm.ScalarOpt_dim_dtype(x, *rest, **kwargs, dtype=torch.float32)


def _promote(op: Any, *args: Any, **kwargs: Any) -> Any:
    with _GUARD(_KEYS):
        wide = any(eligible(x) and x.dtype == torch.float32 for x in tree_leaves((args, kwargs)))
        dtype = torch.float32 if wide else torch.get_autocast_dtype("cpu")
        return op(*_all(args, dtype), **_all(kwargs, dtype))


_POLICIES: tuple[tuple[list[str], Callable[..., Any]], ...] = (
    (LOWER, _lower),
    (FP32, _fp32),
    (FP32_BY_DTYPE, _fp32_by_dtype),
    (NORMS, _norm),
    (PROMOTE, _promote),
)


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet, None), overload or "default", None)


@cache
def _install() -> torch.library.Library:
    """Register the policies once for the process: kernels cannot be registered and removed again."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    for names, policy in _POLICIES:
        for name in names:
            op = _op(name)
            if op is not None:
                library.impl(name, partial(policy, op), allow_override=True)
    for name in CPU_ONLY:
        if _op(name) is not None:
            try:
                library.impl(name, torch.library.fallthrough_kernel, allow_override=True)
            except RuntimeError:  # not on this version's CPU list
                continue
    return library


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Inside, ``torch.autocast("cpu", ...)`` casts as ``torch.autocast("cuda", ...)`` does."""
    _install()
    clear, enabled = torch.clear_autocast_cache, torch.is_autocast_enabled

    def clear_both() -> None:
        _weights.clear()
        clear()

    def for_cuda(device_type: str = "cuda") -> bool:
        return bool(enabled("cpu" if device_type == "cuda" else device_type))

    torch.clear_autocast_cache = clear_both
    torch.is_autocast_enabled = for_cuda
    try:
        yield
    finally:
        torch.clear_autocast_cache, torch.is_autocast_enabled = clear, enabled
        _weights.clear()
