"""Stand-ins for the flash-attn package, so that transformers' own integration runs without it.

They allocate and save what FlashAttnFunc and FlashAttnVarlenFunc of flash-attn 2.8 do (flash_attn_interface.py,
csrc/flash_attn/flash_api.cpp), and compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from vramplan.units import round_up

NAMESPACE = "vramplan_flash"


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None, dropout: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """mha_fwd, mha_varlen_fwd: the output, the log-sum-exp, a random state of two numbers."""
    shape = (q.shape[0], q.shape[2], q.shape[1]) if lengths is None else (q.shape[1], q.shape[0])
    return torch.empty_like(q), q.new_empty(shape, dtype=torch.float32), q.new_empty((2,), dtype=torch.int64)


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """mha_bwd, mha_varlen_bwd: write dq, dk and dv, and return row sums."""
    heads = q.shape[-2]
    if lengths is None:
        return q.new_empty((q.shape[0], heads, round_up(q.shape[1], 128)), dtype=torch.float32)
    return q.new_empty((heads, q.shape[0] + 128 * (lengths.shape[0] - 1)), dtype=torch.float32)


@cache
def _ops() -> Any:
    """The two kernels as operations, so that dispatch modes see them; defined once for the process."""
    library = torch.library.Library(NAMESPACE, "DEF")
    library.define("forward(Tensor q, Tensor k, Tensor v, Tensor? lengths, float dropout) -> (Tensor, Tensor, Tensor)")
    library.define(
        "backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sum,"
        " Tensor dq, Tensor dk, Tensor dv, Tensor? lengths) -> Tensor"
    )
    for name, kernel in (("forward", _forward), ("backward", _backward)):
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", kernel, lib=library)
    ops = getattr(torch.ops, NAMESPACE)
    ops.library = library  # must live as long as the operations
    return ops


class FlashAttention(torch.autograd.Function):
    """Saves q, k, v, the output, its log-sum-exp, the random state and the cumulative lengths."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lengths_q: torch.Tensor | None,
        lengths_k: torch.Tensor | None,
        dropout: float,
    ) -> torch.Tensor:
        """Head widths are padded to a multiple of 8."""
        dim = q.shape[-1]
        if dim % 8:
            q, k, v = (F.pad(x, (0, 8 - dim % 8)) for x in (q, k, v))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        out, log_sum, state = _ops().forward(q, k, v, lengths_q, dropout)
        ctx.save_for_backward(q, k, v, out, log_sum, state, lengths_q, lengths_k)
        return out[..., :dim]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Allocates dq, dk and dv before the kernel runs."""
        q, k, v, out, log_sum, _, lengths, _ = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dim = grad.shape[-1]
        padded = F.pad(grad, (0, 8 - dim % 8)) if dim % 8 else grad if grad.stride(-1) == 1 else grad.contiguous()
        _ops().backward(padded, q, k, v, out, log_sum, dq, dk, dv, lengths)
        return dq[..., :dim], dk[..., :dim], dv[..., :dim], None, None, None


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> torch.Tensor:
    """(batch, length, heads, dim); window, scale and softcap change no allocation."""
    return FlashAttention.apply(q, k, v, None, None, dropout_p)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """(tokens, heads, dim) of several sequences."""
    return FlashAttention.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, dropout_p)


class PutRows(torch.autograd.Function):
    """bert_padding.IndexPutFirstAxis: rows written into zeros; saves only the indices."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
        """`rows` rows: `values` at `indices`, zeros elsewhere."""
        ctx.save_for_backward(indices)
        output = torch.zeros(rows, *values.shape[1:], device=values.device, dtype=values.dtype)
        output[indices] = values
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The rows at the saved indices."""
        return grad[ctx.saved_tensors[0]], None, None


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """flash_attn.bert_padding.pad_input."""
    rows = PutRows.apply(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))


@contextmanager
def installed() -> Iterator[None]:
    """Inside, transformers regards flash-attn 2 as installed and loads the stand-ins."""
    import transformers.modeling_flash_attention_utils as utils
    from transformers.modeling_utils import PreTrainedModel

    kernels = (flash_attn_func, flash_attn_varlen_func, None, pad_input, utils._unpad_input)
    entry = utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    originals = (
        entry["general_availability_check"],
        PreTrainedModel._flash_attn_import_error,
        utils._lazy_imports,
        utils._loaded_implementation,
    )
    entry["general_availability_check"] = lambda *args, **kwargs: True
    PreTrainedModel._flash_attn_import_error = lambda self, *args, **kwargs: None
    utils._lazy_imports = lambda *args, **kwargs: kernels
    utils._loaded_implementation = None
    try:
        yield
    finally:
        (
            entry["general_availability_check"],
            PreTrainedModel._flash_attn_import_error,
            utils._lazy_imports,
            utils._loaded_implementation,
        ) = originals
