"""MiniMax M2: norms over all of q and of k, partial rotary, a sigmoid for each expert.

Mirrors transformers 5.23, modeling_minimax_m2.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.moe import ROUTED, flat, layer
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed, router_weight
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def minimax_m2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, experts, add."""
    return layer(net, c, x, ctx, kind, attention, mixture)


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """MiniMaxM2Attention."""
    heads = heads_of(c)
    batch, length, width = x.shape
    q = net.rms_norm("self_attn.q_norm", net.linear("self_attn.q_proj", x, heads.query * heads.dim))
    k = net.rms_norm("self_attn.k_norm", net.linear("self_attn.k_proj", x, heads.key * heads.dim))
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim).view(batch, length, heads.key, heads.dim)
    q, k = q.view(batch, length, heads.query, heads.dim), k.view(batch, length, heads.key, heads.dim)
    net.tape.module = "self_attn"
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    return net.linear("self_attn.o_proj", out, width), *weights


def mixture(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """MiniMaxM2SparseMoeBlock, whose forward holds the router's logits."""
    experts = Experts(
        c.count("num_local_experts", 256),
        c.count("num_experts_per_tok", 8),
        c.count("intermediate_size", 1536),
        c.text("hidden_act", "silu"),
    )
    rows = flat(x)
    logits, to = router(net, rows, experts)
    out = routed(net, "mlp.experts", rows, to, experts).view(*x.shape)
    del logits
    return out


def router(net: Modules, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """MiniMaxM2TopKRouter: the correction helps to choose; shares stay in fp32."""
    name = "mlp.gate"
    weight = router_weight(net, name, experts.number, x.shape[-1])
    net.tape.module = name
    logits = ops.linear(ops.to(x, weight.dtype), weight, None, "router logits")
    shares = ops.sigmoid(ops.to(logits, "fp32", "router logits in fp32"))
    choice = ops.add(shares, net.resident((experts.number,), net.training.dtype), "corrected scores")
    values, which = ops.top(choice, experts.top, "scores of a token's experts")
    best = ops.gather(shares, which, which.shape)
    best = ops.divide_in_place(best, ops.total(best))
    del values, choice
    return logits, (best, which)


def rotary(c: Config) -> Rotary:
    """Rotary over part of each head: by its width or by its share."""
    return Rotary(c.count("rotary_dim", int(heads_of(c).dim * c.number("partial_rotary_factor", 1.0))))


def corrections(c: Config) -> list[Input]:
    """A number for each expert of each layer."""
    return [Input("e_score_correction_bias", (c.count("num_local_experts", 256),), "fp32")] * c.count(
        "num_hidden_layers"
    )


ARCHITECTURES = {
    "minimax_m2": Architecture(
        decoder=Decoder(minimax_m2, rotary=rotary),
        buffers=corrections,
        refuses=(*ROUTED, ("router_jitter_noise", ...)),
        peft_experts="mixtral",
        defaults={"head_dim": 128},
    ),
}
