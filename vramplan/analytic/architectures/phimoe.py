"""Phi 3.5's mixture: LayerNorms, experts drawn by SparseMixer (transformers 5.23, modeling_phimoe.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, layer_norm
from vramplan.analytic.architectures.llama import every_layer_slides, plain_window
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers import moe_linear_experts
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed
from vramplan.errors import ConfigError, setting
from vramplan.inputs.model_spec import Config


def phimoe(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """PhimoeDecoderLayer."""
    bias, residual = c.flag("attention_bias", False), x
    x = net.layer_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("post_attention_layernorm", x)
    experts = Experts(
        c.count("num_local_experts", 16),
        2,  # as many as SparseMixer draws
        c.count("intermediate_size"),
        c.text("hidden_act", "silu"),
    )
    rows = flat(x)
    if net.training.linear_experts:
        scores = net.linear("block_sparse_moe.gate", rows, experts.number)
        to = mixed(net, scores)
        out, held = moe_linear_experts.in_turn(
            net, "block_sparse_moe.experts", rows, to, experts, moe_linear_experts.BY_NUMBER
        )
        del held
    else:
        out = routed(net, "mlp.experts", rows, router(net, rows, experts), experts)
    return ops.add(residual, out.view(*x.shape), "residual stream")


def router(net: Modules, x: Tensor, experts: Experts) -> Routed:
    """PhimoeTopKRouter: a linear layer that returns three tensors, on which PEFT's adapter fails."""
    name = "mlp.router"
    if net.is_target(name):
        raise ConfigError(
            "PEFT cannot adapt this model's router, which all-linear includes;"
            f" give {setting('lora_targets', 'q_proj,k_proj,v_proj,o_proj')}"
        )
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", experts.number, x.shape[-1])
    return mixed(net, ops.linear(x, weight, None, "router logits"))


def mixed(net: Modules, scores: Tensor) -> Routed:
    """Sparsemixer."""
    first, one, held = drawn(scores, scores)
    others = ops.scale(scores.detach(), "scores but the largest")
    second, other, more = drawn(scores, others)
    shares = ops.cat(first, second)
    which = net.tape.empty(shape := (scores.shape[0], 2), "int64", "experts of each token")
    del one, other, held, more, shape
    return shares, which


def drawn(scores: Tensor, among: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One expert of each token, drawn from those near the best, its share, and what lives to sparsemixer's end."""
    tape, like, rows = scores.tape, scores.like, (scores.shape[0], 1)
    nearest = tape.empty(rows, "int64", "best expert")
    held = [nearest, tape.empty(like.shape, like.dtype, "factor of each score")]
    mask = tape.empty(like.shape, "bool", "experts far below the best")
    gates = ops.masked(among, mask)
    noise = [tape.empty(like.shape, like.dtype, "noise to draw by") for _ in range(2)]
    del noise
    which = tape.empty(rows, "int64", "expert drawn")
    shares = kernels.softmax(gates)
    del gates
    own = ops.gather(shares, which, rows)
    scaled = tape.empty(rows, shares.dtype, "1 or a third")

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the scores")]

    node = tape.node((scores,), backward)  # PhimoeMultiplier; the graph behind `own` stays, without a gradient
    tape.save(node, own, which, shares, mask)
    out = ops.output(node, tape, rows, shares.dtype, "share of the expert drawn")
    return out, which, [*held, scaled]


ARCHITECTURES = {
    "phimoe": Architecture(
        decoder=Decoder(phimoe, norm=layer_norm, head_bias=True, window=plain_window),
        stacks=one_stack(every_layer_slides),
        defaults={"lm_head_bias": False},
        refuses=(("lm_head_bias", False), ("input_jitter_noise", ...), *ROUTED),
    ),
}
