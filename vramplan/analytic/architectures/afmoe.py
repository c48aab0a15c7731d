"""Trinity (AFMoE): a sigmoid gates attention, norms before and behind both branches, a router that is a linear layer.

Mirrors transformers 5.23, modeling_afmoe.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, embed_tokens
from vramplan.analytic.architectures.llama import olmo_norm, plain_window
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import moe_peft
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, declare, routed, router_weight
from vramplan.analytic.layers.rope import rotary
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, norm, add; norm, feed-forward or mixture, norm, add."""
    residual = x
    x = olmo_norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind)
    x = olmo_norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = olmo_norm(net, "pre_mlp_layernorm", x)
    x = feed_forward(net, c, x, kind)
    x = olmo_norm(net, "post_mlp_layernorm", x)
    return ops.add(residual, x, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """AfmoeAttention: only layers that slide have positions."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q, k, v = (
        net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    gate = net.linear("self_attn.gate_proj", x, heads.query * heads.dim)
    q, k = olmo_norm(net, "self_attn.q_norm", q), olmo_norm(net, "self_attn.k_norm", k)
    net.tape.module = "self_attn"
    q, k = rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    out = ops.mul(out, ops.sigmoid(gate), "gated output")
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def feed_forward(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """AfmoeMLP, or AfmoeSparseMoeBlock: a shared expert first."""
    act = c.text("hidden_act", "silu")
    if kind.dense:
        return gated(net, "mlp", x, c.count("intermediate_size", 6144), act)
    width = c.count("moe_intermediate_size", 1408)
    experts = Experts(c.count("num_experts", 64), c.count("num_experts_per_tok", 6), width, act)
    rows = flat(x)
    logits, to = router(net, rows, experts)
    shared = gated(net, "mlp.shared_experts", rows, width * c.count("num_shared_experts", 2), act)
    declare(net, "mlp.experts", x.shape[-1], experts)
    out = routed(net, "mlp.experts", rows, to, experts).view(*x.shape)
    out = ops.add(shared.view(*x.shape), out, "output")
    del logits
    return out


def router(net: Modules, x: Tensor, experts: Experts) -> tuple[Tensor, Routed]:
    """AfmoeTokenChoiceRouter: a correction that never trains helps to choose; shares stay in fp32."""
    logits = ops.to(router_logits(net, "mlp.router.gate", x, experts.number), "fp32", "router logits in fp32")
    correction = net.parameter("mlp.expert_bias", experts.number, frozen=True)
    scores = ops.sigmoid(logits)
    which = ops.top(ops.add(scores, correction, "corrected scores"), experts.top, "scores of a token's experts")[1]
    shares = ops.gather(scores, which, which.shape)
    total = ops.shift(ops.total(shares))
    shares = ops.divide(shares, total)
    return logits, (ops.scale(shares, "scaled shares"), which)


def router_logits(net: Modules, name: str, x: Tensor, experts: int) -> Tensor:
    """A linear layer, whose weight PEFT adapts as it adapts stacked experts.

    Raises:
        UnsupportedError: for such an adapter on a quantized layer.
    """
    training = net.training
    if "gate.weight" not in moe_peft.adapted(training.peft_expert_pattern, training.lora_targets):
        return net.linear(name, x, experts)
    if training.quantize != "none":
        raise UnsupportedError(
            f"{setting('quantize', training.quantize)} with an adapter on the router, which is a linear layer here, is"
            f" not modelled; give {setting('lora_targets', 'q_proj,k_proj,v_proj,o_proj')}"
        )
    weight = router_weight(net, name, experts, x.shape[-1])
    net.tape.module = name
    return ops.linear(x, weight, None, "router logits")


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embedding, times a number if the configuration asks for it."""
    x = embed_tokens(net, c, ids)
    if not c.flag("mup_enabled", False):
        return x
    net.embedding_locals = [x]
    return ops.scale(x, "scaled embedding")


def kinds(c: Config) -> list[LayerKind]:
    """Every fourth layer is full and has no positions; the first layers are no mixtures."""
    layers, dense = c.count("num_hidden_layers", 32), c.get("num_dense_layers", 1)
    period = c.count("global_attn_every_n_layers", 4)
    types = c.get("layer_types") or [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)
    ]
    return [
        LayerKind(sliding=slides, rotary=slides, dense=layer < dense)
        for layer, slides in enumerate(name == "sliding_attention" for name in types)
    ]


ARCHITECTURES = {
    "afmoe": Architecture(
        decoder=Decoder(layer, embed=embed, norm=olmo_norm, window=plain_window),
        stacks=one_stack(kinds),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"head_dim": 128, "sliding_window": 1024},
    )
}
