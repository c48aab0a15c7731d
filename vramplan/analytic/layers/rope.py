"""Rotary position embedding of queries and keys, (batch B, length S, heads, head dim D).

Mirrors transformers 5.23, modeling_llama.py unless another model is named.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import Context, LayerKind


def rotate_half(x: Tensor) -> Tensor:
    """``torch.cat((-x2, x1), dim=-1)``."""
    half = x.shape[-1] // 2
    first, second = ops.part(x, half), ops.part(x, half)
    return ops.cat(ops.neg(second), first)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``(x * cos) + (rotate_half(x) * sin)``."""
    return ops.add(ops.mul(x, cos, "x * cos"), ops.mul(rotate_half(x), sin, "rotated half * sin"), "rotated")


def rotary(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``; nothing on layers without positions."""
    if not kind.rotary:
        return q, k
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    turned = rotate(q, cos, sin)
    return turned, rotate(k, cos, sin)


def partial_rotary(
    q: Tensor, k: Tensor, ctx: Context, kind: LayerKind, keeps: bool = False, one_by_one: bool = False
) -> tuple[Tensor, ...]:
    """Rotary on the first part of each head; the pieces are joined again, which makes q and k contiguous.

    `keeps`: written out in the attention's forward (phi, gptj), whose locals, returned as well, live to its end.
    `one_by_one`: q is joined before k is turned (phi3).
    """
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_turn, k_turn = ops.part(q, width), ops.part(k, width)
    q_pass, k_pass = (None, None) if not rest else (ops.part(q, rest), ops.part(k, rest))
    if one_by_one:
        q_turned = joined(rotate(q_turn, cos, sin), q_pass)
        return q_turned, joined(rotate(k_turn, cos, sin), k_pass)
    q_turned = rotate(q_turn, cos, sin)
    k_turned = rotate(k_turn, cos, sin)
    q_joined = joined(q_turned, q_pass)
    if not keeps:
        del q_turned
        return q_joined, joined(k_turned, k_pass)
    return q_joined, joined(k_turned, k_pass), q_turned, k_turned, q, k


def joined(turned: Tensor, rest: Tensor | None) -> Tensor:
    """``torch.cat([turned, rest], dim=-1)``, a copy even where nothing is left over."""
    return ops.copy(turned, "concatenation") if rest is None else ops.cat(turned, rest)
