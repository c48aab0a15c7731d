"""Differences of CUDA's kernels from the operations that a trace sees: dtypes, order, in-place work."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from vramplan.step_time.kernels import ATTENTION, BACKWARD, MATMUL, Kernel
from vramplan.torch_backend.trace import flash_attn_stub

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

# -- outputs -----------------------------------------------------------------------------------------------------------


def as_on_cuda(func: Any, out: Any) -> Any:
    """The outputs of `func` as on CUDA, where layer norm's mean and 1/sigma are fp32 (layer_norm_kernel.cu: acc_type).

    On the CPU they have the input's dtype. On CUDA the output of layer norm is contiguous for any input
    (LEGACY_CONTIGUOUS_MEMORY_FORMAT), which fake tensors do not know.
    """
    if func in _LAYER_NORM and out[0] is not None and not out[0].is_contiguous():
        out = (torch.empty_like(out[0], memory_format=torch.contiguous_format), *out[1:])
    if func is aten.native_layer_norm.default and out[1].dtype in HALF:
        return (out[0], *(torch.empty_like(x, dtype=torch.float32) for x in out[1:]))
    return out


def in_order(func: Any, leaves: list[Any]) -> list[Any]:
    """The results of `func` in the order that CUDA allocates them: dropout's mask first (native/cuda/Dropout.cu)."""
    return leaves[::-1] if func is aten.native_dropout.default else leaves


_LAYER_NORM = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default)
_SELECTIONS = ("Max", "Min", "Topk", "Sort", "Median", "Kthvalue", "Mode")
_IN_PLACE = {
    ("IndexBackward0", aten.index_put.default): aten.index_put_.default,  # index_backward
    ("GatherBackward0", aten.scatter_add.default): aten.scatter_add_.default,  # gather_backward
    ("IndexSelectBackward0", aten.index_add.default): aten.index_add_.default,  # index_select_backward
    **{(f"{name}Backward{n}", aten.scatter.src): aten.scatter_.src for name in _SELECTIONS for n in (0, 1)},
}
_OUT_OF_PLACE = {func for _, func in _IN_PLACE}


def without_subclasses(func: Any) -> Any:
    """The operation that a backward formula calls in an ordinary run, in place of `func`.

    Under any dispatch mode areAnyTensorSubclassLike is true, and some formulas of FunctionsManual.cpp then work out of
    place, with one more tensor. (In a recomputed forward gradients are enabled; in a formula they are not.)
    """
    if func not in _OUT_OF_PLACE or torch.is_grad_enabled():
        return func
    node = torch._C._current_autograd_node()
    return _IN_PLACE.get((node.name(), func), func) if node is not None else func


# -- work --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _is_view(func: Any) -> bool:
    return any(result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns)


def _flash_flops(func: Any, args: Any) -> int:
    """FLOPs of flash-attn's kernels, as torch.utils.flop_counter counts SDPA: two products forward, five backward."""
    backward = func.__name__.startswith("backward")
    q, k, lengths = (args[1], args[2], args[9]) if backward else (args[0], args[1], args[3])
    heads, dim = q.shape[-2:]
    batch = q.shape[0] if lengths is None else lengths.shape[0] - 1
    queries, keys = q.numel() // (heads * dim * batch), k.numel() // (k.shape[-2] * dim * batch)
    return (10 if backward else 4) * int(batch) * int(heads) * int(queries) * int(keys) * int(dim)


def _grouped_convolution_flops(args: Any) -> int:
    """FLOPs of the gradients of a convolution in groups; torch's counter takes the weight's for a dense one."""
    gradient, weight, mask = args[0], args[2], args[-1]
    return 2 * gradient.numel() * prod(weight.shape[1:]) * sum(mask[:2])


def work(func: Any, args: Any, kwargs: Any, out: Any) -> Kernel:
    """FLOPs of an operation, as torch.utils.flop_counter counts them, and bytes read and written."""
    if _is_view(func):
        return Kernel(0, 0, 0, "fp32")
    count = flop_registry.get(func._overloadpacket)
    flops = int(count(*args, **kwargs, out_val=out)) if count is not None else 0
    if func.namespace == flash_attn_stub.NAMESPACE:
        flops = _flash_flops(func, args)
    elif func is aten._grouped_mm.default:  # the experts of an MoE; torch's counter leaves them out
        flops = 2 * args[0].numel() * out.shape[-1]
    elif func is aten.convolution_backward.default and args[-2] > 1:
        flops = _grouped_convolution_flops(args)
    moved = 0
    dtype = "fp32"
    for group in (args, out if isinstance(out, (tuple, list)) else (out,)):
        for value in group:
            for leaf in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(leaf, torch.Tensor):
                    moved += leaf.numel() * leaf.element_size()
                    dtype = _NAMES.get(leaf.dtype, dtype)
    if not flops:
        return Kernel(0, moved, 1, dtype)
    if "attention" in func.__name__ or func.namespace == flash_attn_stub.NAMESPACE:
        return Kernel(flops, moved, 1, dtype, ATTENTION + (BACKWARD if "backward" in func.__name__ else ""))
    results = [result for result in (out if isinstance(out, (tuple, list)) else (out,)) if result is not None]
    return Kernel(flops, moved, 1, dtype, MATMUL, sum(result.numel() for result in results))
