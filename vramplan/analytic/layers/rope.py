"""Rotary position embedding of queries and keys, (batch B, length S, heads, head dim D).

Mirrors transformers 5.23, modeling_llama.py unless another model is named.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers import liger
from vramplan.analytic.layers.context import Context, LayerKind


def rotary_tables(tape: Tape, rows: int, length: int, width: int, dtype: str, pairs: bool = True) -> list[Tensor]:
    """Cosines and sines, (rows, S, 1, width), as ``LlamaRotaryEmbedding`` makes them: in fp32, then in `dtype`.

    `pairs`: each frequency is there twice.
    """
    shape = rows, length, 1, width
    frequencies = tape.empty((*shape[:-1], width // 2), "fp32", "rotary angles") if pairs else None
    angles = tape.empty(shape, "fp32", "rotary angles")
    tables = []
    for name in ("cos", "sin"):
        table = tape.empty(shape, "fp32", f"rotary {name}")
        tables.append(tape.empty(shape, "fp32", f"rotary {name}"))  # times attention_scaling, also if that is 1
        del table
    if dtype == "fp32":
        return tables
    cast = [tape.empty(shape, dtype, f"rotary {name}") for name in ("cos", "sin")]
    del frequencies, angles
    tables.reverse()  # emptied from its end: cosines first
    tables.clear()
    return cast


def complex_table(tape: Tape, rows: int, length: int, width: int) -> list[Tensor]:
    """``torch.polar`` of angles in fp32, times attention_scaling; it stands for cosines and for sines (llama4)."""
    half, whole = (rows, length, 1, width // 2), (rows, length, 1, width)
    angles = [tape.empty(half, "fp32", "rotary angles") for _ in ("angles", "ones")]
    table = tape.empty(whole, "fp32", "rotary numbers")
    table = tape.empty(whole, "fp32", "rotary numbers")
    del angles
    return [table, table]


def rotate_half(x: Tensor) -> Tensor:
    """``torch.cat((-x2, x1), dim=-1)``."""
    half = x.shape[-1] // 2
    first, second = ops.part(x, half), ops.part(x, half)
    return ops.cat(ops.neg(second), first)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``(x * cos) + (rotate_half(x) * sin)``."""
    return ops.add(ops.mul(x, cos, "x * cos"), ops.mul(rotate_half(x), sin, "rotated half * sin"), "rotated")


def rotary(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``; q and k unchanged on layers without positions."""
    if not kind.rotary:
        return q, k
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    if ctx.positions_of_images > 1:
        cos, sin = (joined_positions(one, ctx.positions_of_images) for one in (cos, sin))
    if ctx.liger_rope:
        rotated_q, rotated_k = liger.rotary(q, k, cos, sin, False, heads_first_grads(q, k.shape[2], ctx, kind))
        return rotated_q, rotated_k
    rotated_q = rotate(q, cos, sin)
    return rotated_q, rotate(k, cos, sin)


def joined_positions(table: Tensor, positions: int) -> Tensor:
    """A table whose columns are those of several positions (transformers 5.9: apply_multimodal_rotary_pos_emb)."""
    rows, *others = table.shape
    return table.tape.empty((rows // positions, *others), table.dtype, "rotary table of a layer")


def heads_first_grads(q: Tensor, key_heads: int, ctx: Context, kind: LayerKind) -> tuple[bool, bool]:
    """Whether attention gives the gradient of q, and those of k and v, with heads before positions in memory.

    Batched products do so for all, and summing over repeated heads for k and v; flash and memory-efficient kernels do
    not.
    """
    if ctx.attention == "flash" or q.shape[1] == 1:
        return False, False
    dtype, is_grouped = q.tape.autocast or q.dtype, q.shape[2] > key_heads
    if ctx.attention == "eager":
        is_product = True
    elif ctx.masks.get(kind.sliding) is not None or q.shape[-1] > 256:
        is_product = False
    else:
        dim, dropout = q.shape[-1], ctx.attention_dropout
        fits = ctx.fused.runs_cudnn(dim, dim, dropout, q.shape[1]) or ctx.fused.runs_flash(dim, dim, dropout, True)
        is_fused = dtype in ("bf16", "fp16") and fits
        is_product, is_grouped = is_grouped and not is_fused, is_grouped and not is_fused
    return is_product and q.shape[2] > 1, (is_product or is_grouped) and key_heads > 1


def partial_rotary(
    q: Tensor, k: Tensor, ctx: Context, kind: LayerKind, keeps: bool = False, one_by_one: bool = False
) -> tuple[Tensor, ...]:
    """Rotary embedding of the first part of each head; q and k are concatenated again, which makes them contiguous.

    `keeps`: part of the attention's forward (phi), so its locals are held until that returns; they are returned too, to
    be freed from the last to the first. `one_by_one`: q is concatenated before k is rotated (phi3).
    """
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    if ctx.liger_rope:
        return tuple(liger.rotary(q, k, cos, sin, True, heads_first_grads(q, k.shape[2], ctx, kind)))
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_rot, q_pass = ops.part(q, width), ops.part(q, rest) if rest else None
    k_rot, k_pass = ops.part(k, width), ops.part(k, rest) if rest else None
    if one_by_one:
        q_rotated = joined(rotate(q_rot, cos, sin), q_pass)
        return q_rotated, joined(rotate(k_rot, cos, sin), k_pass)
    q_rotated = rotate(q_rot, cos, sin)
    k_rotated = rotate(k_rot, cos, sin)
    q_joined = joined(q_rotated, q_pass)
    if not keeps:
        del q_rotated
        return q_joined, joined(k_rotated, k_pass)
    return q_joined, joined(k_rotated, k_pass), k, k_rotated, q, q_rotated


def temperatures(q: Tensor, ctx: Context) -> Tensor:
    """A number for each position, by which queries are multiplied (ministral3: get_llama_4_attn_scale)."""
    rows = 1 if ctx.positions is None else ctx.positions.shape[0]
    numbers = q.tape.empty((rows, q.shape[1], 1, 1), "fp32", "temperatures of positions")
    return ops.to(numbers, q.dtype, "temperatures of positions")


def joined(rotated: Tensor, rest: Tensor | None) -> Tensor:
    """``torch.cat([rotated, rest], dim=-1)``: a copy even if `rest` is empty."""
    return ops.copy(rotated, "concatenation") if rest is None else ops.cat(rotated, rest)
