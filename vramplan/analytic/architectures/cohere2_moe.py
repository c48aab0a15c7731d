"""Cohere 2 with experts (North Mini): attention beside a mixture (transformers 5.23, modeling_cohere2_moe.py)."""

from __future__ import annotations

from vramplan.analytic.architectures import cohere
from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, times
from vramplan.analytic.architectures.llama import window_or
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed, router_weight
from vramplan.inputs.model_spec import Config

SLIDES, FULL = "sliding_attention", "full_attention"


def norm(net: Modules, c: Config, name: str, x: Tensor) -> Tensor:
    """Cohere's LayerNorm, or an RMS norm if the configuration has a number for it."""
    return cohere.norm(net, name, x) if c.get("rms_norm_eps") is None else net.rms_norm(name, x)


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """One norm, then attention and feed-forward or mixture side by side."""
    residual = x
    x = norm(net, c, "input_layernorm", x)
    out, *weights = cohere.cohere_attention(net, c, x, ctx, kind)
    x = feed_forward(net, c, x, kind)
    return ops.add(ops.add(residual, out), x, "residual stream")


def feed_forward(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """Cohere2MoeMLP, or Cohere2MoeSparseMoeBlock: routed experts, then shared ones, whose outputs may be averaged."""
    act, width = c.text("hidden_act", "silu"), c.count("intermediate_size")
    if kind.dense:
        return gated(net, "mlp", x, c.count("prefix_dense_intermediate_size", width), act)
    experts = Experts(c.count("num_experts", 8), c.count("num_experts_per_tok", 2), width, act)
    rows, shared = flat(x), int(c.number("num_shared_experts", 0))
    logits, to = router(net, c, rows, experts)
    out = routed(net, "mlp.experts", rows, to, experts)
    if shared:
        beside = gated(net, "mlp.shared_experts", rows, width * shared, act)
        out = ops.add(out, beside, "output")
        if c.text("shared_expert_combination_strategy", "average") == "average":
            out = ops.scale(out, "average")
        del beside
    del logits, to
    return out.view(*x.shape)


def router(net: Modules, c: Config, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """Cohere2MoeTopKRouter: shares of the best logits alone."""
    name = "mlp.gate"
    weight = router_weight(net, name, experts.number, x.shape[-1])
    net.tape.module = name
    logits = ops.linear(x, weight, None, "router logits")
    best, which = ops.top(logits, experts.top, "logits of a token's experts")
    if c.text("expert_selection_fn", "softmax") == "softmax":
        best = attention_kernels.softmax_fp32(best)
    else:
        best = ops.sigmoid(best)
        if c.flag("norm_topk_prob", True):
            best = ops.divide(best, ops.total(best))
    return logits, (ops.to(best, x.dtype, "shares of a token's experts"), which)


def kinds(c: Config) -> list[LayerKind]:
    """Layers that slide have positions, and the first, dense ones under a pattern of 1."""
    layers, first = c.count("num_hidden_layers", 40), int(c.number("first_k_dense_replace", 0))
    prefix, period = c.count("prefix_dense_sliding_window_pattern", 1), c.count("sliding_window_pattern", 4)
    feeds = c.get("mlp_layer_types") or ["dense"] * first + ["sparse"] * (layers - first)
    attends = c.get("layer_types") or [
        *(SLIDES if number % prefix else FULL for number in range(1, first + 1)),
        *(SLIDES if number % period else FULL for number in range(1, layers - first + 1)),
    ]
    return [
        LayerKind(
            sliding=name == SLIDES, rotary=name == SLIDES or (feed == "dense" and prefix == 1), dense=feed == "dense"
        )
        for name, feed in zip(attends, feeds, strict=True)
    ]


ARCHITECTURES = {
    "cohere2_moe": Architecture(
        decoder=Decoder(
            layer,
            norm=None,
            leave=lambda net, c, x: norm(net, c, "model.norm", x),
            after_head=times,
            window=window_or(4096),
        ),
        tied=True,
        stacks=one_stack(kinds),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"head_dim": 128},
    )
}
