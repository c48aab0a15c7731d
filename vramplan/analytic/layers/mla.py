"""Multi-head latent attention (MLA): keys and values from a low-rank state; one rotary key for all heads.

(transformers 5.23, modeling_deepseek_v3.py, modeling_deepseek_v2.py, modeling_minicpm3.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config

Turn = Callable[[Tensor, Tensor, Context], tuple[Tensor, Tensor]]


def latent_attention(net: Modules, c: Config, x: Tensor, ctx: Context, turn: Turn) -> tuple[Tensor, ...]:
    """DeepseekV3Attention; `turn` rotates the rotary part of q and k."""
    heads, bias = c.count("num_attention_heads"), c.flag("attention_bias", False)
    plain, rotary, value = c.count("qk_nope_head_dim"), c.count("qk_rope_head_dim"), c.count("v_head_dim")
    (batch, length, width), rank = x.shape, c.count("kv_lora_rank")
    if c.get("q_lora_rank") is None:
        q = net.linear("self_attn.q_proj", x, heads * (plain + rotary))
    else:
        q = net.rms_norm("self_attn.q_a_layernorm", net.linear("self_attn.q_a_proj", x, c.count("q_lora_rank"), bias))
        q = net.linear("self_attn.q_b_proj", q, heads * (plain + rotary))
    q = ops.heads_first(q.view(batch, length, heads, plain + rotary))
    q_plain, q_rot = ops.split(q, plain, rotary)
    compressed = net.linear("self_attn.kv_a_proj_with_mqa", x, rank + rotary, bias)
    kv, k_rot = ops.split(compressed, rank, rotary)
    kv = net.rms_norm("self_attn.kv_a_layernorm", kv)
    net.tape.module = "self_attn"
    q_rot, k_rot = turn(q_rot, k_rot.view(batch, length, 1, rotary), ctx)
    if ctx.cache is not None:  # what is cached is the low-rank state and the rotary key of all heads
        kv, k_rot = update_cache(kv, k_rot, ctx, LayerKind())
        length, ctx = kv.shape[1], replace(ctx, cache=None)
    query = ops.cat(q_plain, q_rot)
    wide = net.linear("self_attn.kv_b_proj", kv, heads * (plain + value))
    net.tape.module = "self_attn"
    k_plain, v = ops.split(ops.heads_first(wide.view(batch, length, heads, plain + value)), plain, value)
    del wide
    k = ops.written(k_plain, k_rot, (batch, length, heads, plain + rotary))
    out, *attention_locals = attend(query, k, v, ctx, contiguous=True)
    return net.linear("self_attn.o_proj", out, width, bias), *attention_locals


def interleaved(q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb_interleave: even and odd positions rotated and concatenated."""
    half = q.shape[-1] // 2
    cos, sin = (table.view(*table.shape[:-1], half) for table in (ctx.cos[False], ctx.sin[False]))
    pairs = [(ops.part(x, half), ops.part(x, half)) for x in (q, k)]
    rotated = []
    for even, odd in pairs:
        first = ops.subtract(ops.mul(even, cos, "even * cos"), ops.mul(odd, sin, "odd * sin"), "first half rotated")
        second = ops.add(ops.mul(odd, cos, "odd * cos"), ops.mul(even, sin, "even * sin"), "second half rotated")
        rotated.append(ops.cat(first, second))
        del first, second
    return rotated[0], rotated[1]


def as_complex(q: Tensor, k: Tensor, ctx: Context, sliding: bool = False) -> tuple[Tensor, Tensor]:
    """apply_rotary_emb: in fp32, pairs as complex numbers."""
    wide = [ops.to(x, "fp32", "fp32 copy to rotate") for x in (q, k)]
    rotated = [ops.to(ops.mul(x, ctx.cos[sliding], "rotated in fp32"), q.dtype, "rotated") for x in wide]
    return rotated[0], rotated[1]
