"""Which fused kernels F.scaled_dot_product_attention may choose on a GPU.

Follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13. There cuDNN's kernel comes first on compute
capability 9 and 10 if cuDNN is newer than 9.15 (check_prefer_cudnn_attention), as in the builds for CUDA 13 since 2.11
(transformers#48163); with an older cuDNN flash comes first. torch 2.5.0 preferred cuDNN too; 2.5.1 made it optional
(pytorch#138522).
"""

from __future__ import annotations

from typing import NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import Config

WIDEST = 256
"""Head dim up to which the flash kernel runs (check_head_dim_size_flash)."""


class FusedAttention(NamedTuple):
    """Properties of a GPU by which a kernel is chosen."""

    flash: bool
    """Whether the flash kernel runs (compute capability 8.0)."""
    narrow: bool = False
    """Whether the flash kernel has no backward for some wide heads (compute capability 8.6 to 8.9, 12)."""
    cudnn_dim: int = 0
    """Head dim up to which cuDNN's kernel comes first; 0 if it does not."""

    def runs_cudnn(self, dim: int, dim_values: int, dropout: float, keys: int) -> bool:
        """Whether cuDNN's kernel runs, in half precision; masks and grouped heads fit (can_use_cudnn_attention)."""
        widths = max(dim, dim_values) <= self.cudnn_dim or (self.cudnn_dim > 0 and (dim, dim_values) == (192, 128))
        return widths and dim % 8 == dim_values % 8 == 0 and float(16 * dropout).is_integer() and keys > 1

    def runs_flash(self, dim: int, dim_values: int, dropout: float, trains: bool) -> bool:
        """Whether the flash kernel runs, in half precision and without a mask (can_use_flash_attention)."""
        too_wide = self.narrow and trains and dim > 192 and (dim <= 224 or dropout > 0)
        return self.flash and dim == dim_values <= WIDEST and not too_wide

    def for_heads(self, widest: int | None) -> FusedAttention:
        """The same without what matters only to heads wider than `widest`, if that is known: more GPUs are alike."""
        if widest is None or widest > 192:
            return self
        return self._replace(narrow=False, cudnn_dim=min(self.cudnn_dim, 128 if widest <= 128 else WIDEST))


def widest_head(config: Config) -> int | None:
    """The widest head of a language model; None if the configuration does not say in the usual keys."""
    width, heads = (
        config.get("hidden_size", config.get("n_embd")),
        config.get("num_attention_heads", config.get("n_head")),
    )
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return None
    named = [config.get(key) for key in ("head_dim", "global_head_dim", "qk_head_dim", "v_head_dim")]
    parts = [config.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
    known = [size for size in named if isinstance(size, int)]
    return max(width // heads, *known, sum(size for size in parts if isinstance(size, int)))


def fused_attention(gpu: Gpu) -> FusedAttention:
    """The kernels of a GPU; one of another vendor is taken to have a flash kernel for all heads."""
    if gpu.vendor != "NVIDIA":
        return FusedAttention(gpu.runs_flash)
    major, minor = gpu.capability
    narrow = (major == 8 and 6 <= minor <= 9) or major == 12
    return FusedAttention(gpu.runs_flash, narrow, {(9, 0): 256}.get((major, minor), 128 if major == 10 else 0))
