"""Hunyuan 3: norms on the heads of q and k, a sigmoid for each expert, a shared expert added in fp32.

Mirrors transformers 5.23, modeling_hy_v3.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, rms_norm
from vramplan.analytic.architectures.moe import ROUTED, flat, layer
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed, wide_logits
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def hy_v3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward or mixture, add."""
    bias = c.flag("attention_bias", False)
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: attention(net, c, x, ctx, kind, bias, bias, rms_norm),
        feed_forward,
    )


def feed_forward(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """HYV3MLP, or HYV3MoE: routed experts first."""
    act, bias = c.text("hidden_act", "silu"), c.flag("mlp_bias", False)
    if kind.dense:
        return gated(net, "mlp", x, c.count("intermediate_size", 13312), act, bias)
    width = c.count("moe_intermediate_size", 1536)
    experts = Experts(c.count("num_experts"), c.count("num_experts_per_tok", 8), width, act)
    rows = flat(x)
    logits, to = router(net, rows, experts)
    out = routed(net, "mlp.experts", rows, to, experts)
    wide = c.flag("enable_moe_fp32_combine", True)
    first = ops.to(out, "fp32", "output in fp32") if wide else out
    shared = gated(net, "mlp.shared_experts", rows, width * c.count("num_shared_experts", 1), act, bias)
    total = ops.add(first, ops.to(shared, "fp32", "output in fp32") if wide else shared, "output")
    total = ops.to(total, x.dtype, "output")
    del logits, out
    return total.view(*x.shape)


def router(net: Modules, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """HYV3TopKRouter: the correction helps to choose; shares stay in fp32."""
    logits = wide_logits(net, "mlp.gate", x, experts)
    shares = ops.sigmoid(logits)
    choice = ops.add(shares, net.resident((experts.number,), "fp32"), "corrected scores")
    values, which = ops.top(choice, experts.top, "scores of a token's experts")
    best = ops.gather(shares, which, which.shape)
    best = ops.divide(best, ops.shift(ops.total(best)))
    best = ops.scale(best, "scaled shares")
    del values, choice
    return logits, (best, which)


def kinds(c: Config) -> list[LayerKind]:
    """The first layer is no mixture unless `mlp_layer_types` says otherwise."""
    types = c.get("mlp_layer_types") or ["dense", *["sparse"] * (c.count("num_hidden_layers") - 1)]
    return [LayerKind(dense=name == "dense") for name in types]


def corrections(c: Config) -> list[Input]:
    """A number for each expert of each mixture."""
    mixtures = sum(not kind.dense for kind in kinds(c))
    return [Input("e_score_correction_bias", (c.count("num_experts"),), "fp32")] * mixtures


ARCHITECTURES = {
    "hy_v3": Architecture(
        decoder=Decoder(hy_v3),
        stacks=one_stack(kinds),
        buffers=corrections,
        refuses=ROUTED,
        defaults={"head_dim": 128, "num_experts": 192},
    )
}
