"""Attention: eager, SDPA and FlashAttention as transformers runs them, and grouped-query attention.

Tensors are (batch B, length S, heads, head dim D). Mirrors transformers 5.23, modeling_llama.py unless another model is
named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, rotary, temperatures
from vramplan.analytic.layers.sequence_parallel import with_all_tokens
from vramplan.analytic.layers.swift_sequence import with_all_tokens_of_rows
from vramplan.inputs.model_spec import Config
from vramplan.memory.fused_attention import WIDEST

Turn = Callable[[Tensor, Tensor, Context, LayerKind], tuple[Tensor, Tensor]]


class Softcap(NamedTuple):
    """How eager attention treats scores besides scaling and masking."""

    caps: bool = False
    """Gemma 2: divide, tanh, multiply."""
    in_fp32: bool = True
    """Softmax in fp32, cast to q's dtype in the same expression; GPT-2 and GPT-J: in the scores' dtype, cast to v's."""
    casts: bool = True
    """Whether probabilities are cast; encoders leave them in softmax's dtype, fp32 under autocast."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ctx: Context,
    kind: LayerKind = LayerKind(),
    contiguous: bool = False,
    scores: Softcap = Softcap(),
) -> tuple[Tensor, ...]:
    """The attention interface: (B, S, heads, D) to (B, S, heads * D), and the tensors that its caller holds.

    `contiguous`: q and k have heads before positions in memory (after a concatenation), so the flash kernel's output
    has too, and ``transpose(1, 2).contiguous()`` copies it (flash_api.cpp: ``empty_like(q)``).
    """
    batch, length, heads, dim = q.shape
    q.tape.module = "self_attn"
    mask = ctx.masks.get(kind.sliding)
    if ctx.attention == "eager":
        cached = ctx.cache is not None
        out, weights = eager_attention(q, k, v, mask, ctx.attention_dropout, contiguous, scores, cached)
        return out.view(batch, length, heads * v.shape[-1]), weights
    if ctx.sequence_parallel > 1:
        exchange = with_all_tokens_of_rows if ctx.shares_rows else with_all_tokens
        out = exchange(partial(flash_package, ctx=ctx), q, k, v, ctx.sequence_parallel)
    elif ctx.attention == "flash":
        out = flash_package(q, k, v, ctx)
        out = ops.copy(out, "attention output made contiguous") if contiguous and not ctx.padded else out
    else:
        out = sdpa(q, k, v, mask, ctx, contiguous)
    return (out.view(batch, length, heads * v.shape[-1]),)


def update_cache(k: Tensor, v: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """``DynamicCache.update``: keys and values concatenated to those of the tokens before; unchanged without a cache.

    The result has the keys' dtype, which is fp32 after a norm under autocast.
    """
    if ctx.cache is None:
        return k, v
    dtype, past = k.dtype, ctx.past.get(kind.sliding, 0)
    if past:
        k, v = longer(k, past, "cached keys"), longer(v, past, "cached values")
    else:
        k = ops.copy(k, "cached keys")
        v = ops.copy(v, "cached values") if v.dtype == dtype else ops.to(v, dtype, "cached values")
    ctx.cache += [k, v]
    return k, v


def longer(x: Tensor, past: int, what: str) -> Tensor:
    """``torch.cat`` of `past` cached tokens and `x`; without gradients."""
    batch, length, *rest = x.shape
    x.tape.work(0, 2 * x.num_bytes // length * (past + length), x.dtype)
    return x.tape.empty((batch, past + length, *rest), x.dtype, what)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ctx: Context, contiguous: bool) -> Tensor:
    """The kernel that F.scaled_dot_product_attention chooses (aten sdp_utils.cpp, torch 2.13; sdpa_attention.py).

    Without a mask grouped heads are not repeated: cuDNN's kernel and flash take them; the memory-efficient kernel does
    not, so the math fallback runs. With a mask they are repeated first.
    """
    groups, dim, wide = q.shape[2] // k.shape[2], q.shape[-1], v.shape[-1]
    if mask is not None or dim != wide or dim > WIDEST or ctx.repeats_heads:
        k, v = ops.repeat_heads(k, groups), ops.repeat_heads(v, groups)
        groups = 1
    out = fused(q, k, v, mask, ctx, heads_first=contiguous)
    if out is not None:
        return ops.copy(out, "attention output made contiguous") if contiguous else out
    dtype = q.tape.autocast or q.dtype
    if groups == 1 and dim % (4 if dtype == "fp32" else 8) == 0:
        return kernels.efficient_attention(q, k, v, mask, causal=ctx.causal)
    return kernels.math_attention(q, k, v, mask, ctx.attention_dropout, contiguous=contiguous)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    ctx: Context,
    pieces: kernels.Pieces | None = None,
    heads_first: bool = False,
) -> Tensor | None:
    """Attention by cuDNN's kernel or flash, whose output has the memory layout of q; None if neither runs."""
    tape, dim, wide, dropout = q.tape, q.shape[-1], v.shape[-1], ctx.attention_dropout
    if (tape.autocast or q.dtype) not in ("bf16", "fp16"):
        return None
    if ctx.fused.runs_cudnn(dim, wide, dropout, k.shape[1]):
        return kernels.cudnn_attention(q, k, v, mask, pieces, ctx.causal)
    trains = tape.grad_enabled and any(x.node is not None for x in (q, k, v))
    if mask is None and ctx.fused.runs_flash(dim, wide, dropout, trains):
        return kernels.flash_attention(q, k, v, pieces, ctx.causal, splits=not dropout, heads_first=heads_first)
    return None


def flash_package(q: Tensor, k: Tensor, v: Tensor, ctx: Context) -> Tensor:
    """flash_attention_2: the flash kernel; padding is removed before and restored after."""
    q, k, v = (ops.low(x) for x in (q, k, v))
    if ctx.copies_heads and ctx.joins_rows:
        k, v = (ops.copy(x, "heads of all queries made contiguous") for x in (k, v))
    if not ctx.padded:
        return kernels.flash_attention(q, k, v, None, ctx.causal, splits=not ctx.attention_dropout, package=True)
    q, k, v = (ops.scale(x, "unpadded copy") for x in (q, k, v))
    return ops.scale(kernels.flash_attention(q, k, v, None, ctx.causal, package=True), "output padded again")


def eager_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    contiguous: bool,
    options: Softcap,
    cached: bool = False,
) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: all scores at once; `cached` keys and values have heads first in memory."""
    batch, length, heads, dim = q.shape
    keys, groups, expanded = k.shape[1], heads // k.shape[2], heads > k.shape[2] == 1  # one head: a view, stride 0
    k, v = ops.repeat_heads(k, groups), ops.repeat_heads(v, groups)
    repeated = (groups > 1 or cached) and not expanded
    shape, flops = (batch, heads, length, keys), 2 * batch * heads * length * keys * dim
    scores = ops.matmul(
        merged(q, contiguous), merged(k, (contiguous and not expanded) or repeated), flops, shape, "attention scores"
    )
    scores = ops.scale(scores, "scaled attention scores")
    if options.caps:
        scores = ops.scale(scores, "capped attention scores")
        scores = ops.tanh(scores)
        scores = ops.scale(scores, "capped attention scores")
    if mask is not None:
        scores = ops.add(scores, mask, "masked attention scores")
    if options.in_fp32:
        weights = ops.to(kernels.softmax_fp32(scores), q.dtype, "attention probabilities")
    else:
        scores = kernels.softmax(scores)
        weights = ops.to(scores, v.dtype, "attention probabilities") if options.casts else scores
    del scores
    weights = ops.dropout(weights, dropout)
    flops, shape = flops // dim * v.shape[-1], (batch, length, heads, v.shape[-1])
    out = ops.matmul(weights, merged(v, repeated), flops, shape, "attention output")
    if batch > 1:
        out = ops.heads_first(out)  # the gradient comes with positions first
    return ops.copy(out), weights


def eager_pieces(q: Tensor, k: Tensor, v: Tensor, pieces: kernels.Pieces) -> Tensor:
    """Eager attention for each piece of a row (1, S, heads, D) in order; the results are concatenated."""
    split = [ops.split_rows(x, pieces.lengths) for x in (q, k, v)]
    outs = [eager_attention(q, k, v, None, 0.0, False, Softcap())[0] for q, k, v in zip(*split, strict=True)]
    return ops.join_rows(outs, q.shape)


def merged(x: Tensor, contiguous: bool) -> Tensor:
    """`x` as input of a batched product: copied if batch and heads cannot be viewed as one dimension."""
    return x if contiguous or x.shape[0] == 1 else ops.copy(x, "heads made contiguous")


def attention(
    net: Modules,
    c: Config,
    x: Tensor,
    ctx: Context,
    kind: LayerKind,
    bias: bool = False,
    out_bias: bool = False,
    norm: Callable[[Modules, str, Tensor], Tensor] | None = None,
    scales_queries: bool = False,
    scores: Softcap | None = None,
    turn: Turn = rotary,
    contiguous: bool = False,
) -> tuple[Tensor, ...]:
    """Grouped-query attention with separate projections and an optional `norm` of each head of q and k (qwen3, gemma3).

    `scales_queries`: by a number for each position (ministral3). `scores`: how eager attention treats them. `turn`:
    rotates q and k, after which they may be `contiguous`.
    Returns the output and the tensors that the caller holds.
    """
    heads = heads_of(c)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    q_first, kv_first = heads_first_grads(q, heads.key, ctx, kind)
    rotates, fused = kind.rotary and not ctx.liger_rope, kind.rotary and ctx.liger_rope  # Liger's kernel copies itself
    if rotates or (q_first and not fused):
        q = ops.heads_first(q)
    if norm is not None:
        q = norm(net, "self_attn.q_norm", q)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if rotates or (kv_first and not fused):
        k = ops.heads_first(k)
    if norm is not None:
        k = norm(net, "self_attn.k_norm", k)
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if kv_first:
        v = ops.heads_first(v)
    net.tape.module = "self_attn"
    q, k = turn(q, k, ctx, kind)
    if scales_queries:
        q = ops.mul(q, temperatures(q, ctx), "scaled queries")
    k, v = update_cache(k, v, ctx, kind)
    if ctx.copies_heads:
        k, v = ops.repeat_heads(k, heads.query // heads.key), ops.repeat_heads(v, heads.query // heads.key)
    softcap = scores or Softcap(caps=c.get("attn_logit_softcapping") is not None)
    out, *attention_locals = attend(q, k, v, ctx, kind, contiguous, softcap)
    out = net.linear("self_attn.o_proj", out, width, out_bias)
    return out, *attention_locals
