"""ERNIE 4.5: Llama with interleaved rotary in fp32; its mixtures have a router in fp32 and shared experts.

Mirrors transformers 5.23, modeling_ernie4_5.py, modeling_ernie4_5_moe.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels, moe_linear_experts
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed, router_weight
from vramplan.analytic.layers.rope import rotate_half
from vramplan.inputs.model_spec import Config


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: each layer interleaves the tables anew; q and k in fp32, both cast back at the end."""
    tape, dtype = q.tape, q.dtype
    cos, sin = (
        tape.empty(table.shape, "fp32", "rotary table, interleaved") for table in (ctx.cos[False], ctx.sin[False])
    )
    rotated_q = rotated(q, cos, sin)
    rotated_k = rotated(k, cos, sin)
    return ops.to(rotated_q, dtype, "rotated"), ops.to(rotated_k, dtype, "rotated")


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``(x.float() * cos) + (rotate_half(x).float() * sin)``."""
    straight = ops.mul(ops.to(x, "fp32"), cos, "x * cos")
    return ops.add(straight, ops.mul(ops.to(rotate_half(x), "fp32"), sin, "rotated half * sin"), "rotated")


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward or mixture, add."""
    bias = c.flag("use_bias", False)
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias, turn=turned)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    if kind.dense:
        x = gated(net, "mlp", x, c.count("intermediate_size"), act_of(c), bias)
    else:
        x = mixture(net, c, x)
    return ops.add(residual, x, "residual stream")


def act_of(c: Config) -> str:
    """The activation function."""
    return c.text("hidden_act", "silu")


def mixture(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Ernie4_5_MoeSparseMoeBlock: shared experts first, then the routed ones."""
    width, number = c.count("moe_intermediate_size", 1536), c.get("moe_num_shared_experts", 2)
    experts = Experts(c.count("moe_num_experts", 64), c.count("moe_k", 6), width, act_of(c))
    rows = flat(x)
    shared = None
    if number:
        shared = gated(net, "mlp.shared_experts", rows, width * int(number), act_of(c), c.flag("use_bias", False))
    logits, to = router(net, rows, experts)
    held: list[Tensor] = []
    if net.training.linear_experts:
        out, held = moe_linear_experts.in_turn(net, "mlp.experts", rows, to, experts)
    else:
        out = routed(net, "mlp.experts", rows, to, experts)
    out = out if shared is None else ops.add(out, shared, "output")
    del logits, held
    return out.view(*x.shape)


def router(net: Modules, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """Ernie4_5_MoeTopKRouter: fp32 weights, and a correction that never trains and helps to choose.

    Before transformers 5 it is a linear layer.
    """
    name, linear = "mlp.gate", net.training.linear_experts
    weight = None if linear else router_weight(net, name, experts.number, x.shape[-1], "fp32")
    correction = net.parameter(
        f"{name}.moe_statics.e_score_correction_bias", 1, experts.number, frozen=True, dtype="fp32"
    )
    net.tape.module = name
    with net.tape.autocasting(None):
        wide = ops.to(x, "fp32", "tokens in fp32")
        if weight is None:
            logits = net.linear(name, wide, experts.number, dtype="fp32")
        else:
            logits = ops.linear(wide, weight, None, "router logits")
        del wide
        shares = attention_kernels.softmax_fp32(logits)
        values, which = ops.top(
            ops.add(shares, correction.view(experts.number), "corrected scores"), experts.top, "scores"
        )
        shares = ops.gather(shares, which, which.shape)
        shares = ops.divide(shares, ops.clamp(ops.total(shares), bounds=1))
    del values
    return logits, (ops.to(shares, x.dtype, "shares of a token's experts"), which)


def kinds(c: Config) -> list[LayerKind]:
    """Every so many layers between two of them is a mixture."""
    layers, every = c.count("num_hidden_layers"), c.count("moe_layer_interval", 1)
    first, last = int(c.number("moe_layer_start_index", 1)), int(c.number("moe_layer_end_index", -1))
    last = layers - 1 if last == -1 else last
    return [LayerKind(dense=bool((layer + 1) % every) or not first <= layer <= last) for layer in range(layers)]


DECODER = Decoder(
    layer, rotary=lambda c: Rotary(heads_of(c).dim, fp32=True), attention_dropout=("no_attention_dropout", 0.0)
)
ARCHITECTURES = {
    "ernie4_5": Architecture(
        decoder=DECODER, stacks=one_stack(lambda c: [LayerKind(dense=True)] * c.count("num_hidden_layers")), tied=True
    ),
    "ernie4_5_moe": Architecture(
        decoder=DECODER,
        stacks=one_stack(kinds),
        tied=True,
        refuses=(*ROUTED, ("use_bias", True)),
        peft_experts="qwen2_moe",
    ),
}
