"""Make the CPU behave as CUDA wherever that decides memory, by patches that are undone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from vramplan.inputs.gpu import Gpu
from vramplan.torch_backend.trace import flash_attn_stub
from vramplan.torch_backend.trace.cuda_autocast import cuda_autocast, low_dtype
from vramplan.torch_backend.trace.sdpa import sdpa_for

_dropout, _softmax = F.dropout, F.softmax


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """One fused kernel that saves a mask of bytes (native/Dropout.cpp: is_fused_kernel_acceptable asks for CUDA)."""
    if training and 0 < p < 1 and input.numel() and not inplace:
        return torch.native_dropout(input, p, True)[0]
    return _dropout(input, p, training, inplace)


def softmax(
    input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """From fp16 to fp32 in one kernel, as on CUDA (native/SoftMax.cpp: softmax asks for is_cuda, Half and Float)."""
    if input.dtype == torch.float16 and dtype == torch.float32 and low_dtype() is None:
        return torch.ops.aten._softmax(input, dim, True)
    return _softmax(input, dim, _stacklevel, dtype)


def _float_dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return dropout(input, p, train)


@contextmanager
def as_cuda(gpu: Gpu, kernels: bool = True) -> Iterator[None]:
    """Inside, torch and transformers take the branches of a real run on the GPU.

    Without `kernels`, for real steps on the host, attention and optimizers run the host's own kernels.
    """
    import transformers.integrations.flash_attention
    import transformers.integrations.sdpa_attention
    import transformers.masking_utils  # noqa: F401  (imported, so that they are patched)

    originals: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    if kernels:
        replace(F, "scaled_dot_product_attention", sdpa_for(gpu))
    replace(F, "dropout", dropout)
    replace(torch, "dropout", _float_dropout)
    replace(F, "softmax", softmax)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.") and name != "transformers.utils.import_utils":
            if "is_tracing" in vars(module):  # a trace takes the branches of a real run
                replace(module, "is_tracing", lambda tensor=None: False)
        elif kernels and name.startswith("torch.optim.") and "_get_value" in vars(module):  # fake step counters
            replace(module, "_get_value", lambda x: 1.0 if isinstance(x, torch.Tensor) else x)
    try:
        with cuda_autocast(), foreach_as_on_cuda(), flash_attn_stub.installed() if kernels else nullcontext():
            yield
    finally:
        for owner, name, value in reversed(originals):
            setattr(owner, name, value)


@contextmanager
def foreach_as_on_cuda() -> Iterator[None]:
    """Inside, optimizers and gradient clipping choose foreach kernels for fake tensors on the CPU, too.

    They choose by device and by the exact type of the tensors.
    """
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as utils

    devices = optimizer._get_foreach_kernels_supported_devices
    type_lists: list[list[type]] = [utils._foreach_supported_types, optimizer._foreach_supported_types]
    for types in type_lists:
        types.append(FakeTensor)
    optimizer._get_foreach_kernels_supported_devices = lambda: [*devices(), "cpu"]
    try:
        yield
    finally:
        optimizer._get_foreach_kernels_supported_devices = devices
        for types in type_lists:
            types.remove(FakeTensor)
