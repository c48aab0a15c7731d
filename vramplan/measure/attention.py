"""Attention as CUDA runs it."""
from __future__ import annotations
import math
from typing import Any
import torch
import torch.nn.functional as F
from vramplan.measure.autocast import cast, low_dtype, without_autocast

aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    low = low_dtype()
    if low is not None:
        query, key, value = (cast(x, low) for x in (query, key, value))
        if attn_mask is not None:
            attn_mask = cast(attn_mask, low)
    with without_autocast():
        half = query.dtype in HALF
        d, dv = query.shape[-1], value.shape[-1]
        wants = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        same = query.shape[1] == key.shape[1]
        if attn_mask is None and half and d == dv and d <= 256 and (same or enable_gqa):
            backend = "flash"
        elif same and d % (8 if half else 4) == 0:
            backend = "efficient"
        else:
            backend = "math"
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device),
                                    torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
        if backend == "flash":
            real = d
            scale = scale if scale is not None else 1 / math.sqrt(d)
            if d % 8:
                query, key, value = (F.pad(x, (0, 8 - d % 8)) for x in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
            return out if real == out.shape[-1] else out[..., :real]
        if backend == "efficient":
            if attn_mask is not None:
                if any(s % 8 for s in attn_mask.stride()[:-1]) or attn_mask.stride(-1) != 1:
                    last = attn_mask.shape[-1]
                    attn_mask = F.pad(attn_mask, (0, 8 - last % 8))[..., :last]
                attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
            return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, wants, dropout_p, is_causal, scale=scale)[0]
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]
