"""Nemotron-H: each layer is a Mamba 2 mixer, attention, a feed-forward or a mixture of experts, behind one norm.

Mirrors transformers 5.23, modeling_nemotron_h.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, one_stack
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.mamba2 import PACKAGES, wide_logits
from vramplan.analytic.architectures.moe import ROUTED, flat
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mamba import gated_norm, mixer
from vramplan.analytic.layers.mamba_sizes import Mixer
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Groups, declare, routed, scored_router
from vramplan.analytic.layers.rope import heads_first_grads
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import MAX_LAYERS, Config

MAMBA, ATTENTION, MLP, MOE = (
    LayerKind(recurrent=True),
    LayerKind(rotary=False),
    LayerKind(rotary=False, feeds=True, dense=True),
    LayerKind(rotary=False, feeds=True),
)
KINDS = {
    **dict.fromkeys(("mamba", "linear_attention", "M"), MAMBA),
    **dict.fromkeys(("attention", "full_attention", "*"), ATTENTION),
    **dict.fromkeys(("mlp", "-"), MLP),
    **dict.fromkeys(("moe", "E"), MOE),
}
"""By the names of layers, and the letters of hybrid_override_pattern."""


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """NemotronHRMSNorm: times ``weight.to(float32)``, then cast back."""
    net.tape.module = name
    weight, dtype, argument = net.parameter(f"{name}.weight", x.shape[-1]), x.dtype, x
    x = ops.to(argument, "fp32")
    x = ops.mul(x, ops.rsqrt(ops.shift(ops.mean(ops.square(x)))), "normalised")
    return ops.to(ops.mul(ops.to(weight, "fp32"), x, "output in fp32"), dtype, "output")


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, the layer's own module, add."""
    residual = x
    x = norm(net, "norm", ops.to(x, net.training.dtype))
    weights: list[Tensor] = []
    if kind.recurrent:
        x = mixer(net, "mixer", x, ctx, mixer_sizes(c), gated_norm)
    elif not kind.feeds:
        x, *weights = attention(net, c, x, ctx, kind)
    elif kind.dense:
        x = feed_forward(net, c, "mixer", x, c.count("intermediate_size", 21504))
    else:
        x = mixture(net, c, x)
    return ops.add(residual, x, "residual stream")


def mixer_sizes(c: Config) -> Mixer:
    """The mixer of a Mamba 2; some keys have an older name."""
    bias = c.flag("use_bias", False)
    return Mixer(
        c.count("mamba_num_heads", 128),
        c.count("mamba_head_dim", 64),
        c.count("mamba_n_groups", c.count("n_groups", 8)),
        c.count("ssm_state_size", 128),
        c.count("mamba_d_conv", c.count("conv_kernel", 4)),
        c.count("mamba_chunk_size", c.count("chunk_size", 128)),
        c.text("mamba_hidden_act", "silu"),
        bias,
        bias,
        c.flag("mamba_conv_bias", c.flag("use_conv_bias", True)),
    )


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Grouped-query attention without positions and biases."""
    heads = heads_of(c)
    batch, length, width = x.shape
    shape = (batch, length, heads.key, heads.dim)
    q = net.linear("mixer.q_proj", x, heads.query * heads.dim).view(batch, length, heads.query, heads.dim)
    q_first, kv_first = heads_first_grads(q, heads.key, ctx, kind)
    q = ops.heads_first(q) if q_first else q
    k, v = (net.linear(f"mixer.{name}_proj", x, heads.key * heads.dim).view(*shape) for name in "kv")
    k, v = (ops.heads_first(k), ops.heads_first(v)) if kv_first else (k, v)
    net.tape.module = "mixer"
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("mixer.o_proj", out, width), *weights


def feed_forward(net: Modules, c: Config, name: str, x: Tensor, width: int) -> Tensor:
    """``down(act(up(x)))``."""
    act, bias = c.text("mlp_hidden_act", "relu2"), c.flag("mlp_bias", False)
    return plain_mlp(net, x, f"{name}.up_proj", f"{name}.down_proj", width, act, bias)


def mixture(net: Modules, c: Config, x: Tensor) -> Tensor:
    """NemotronHMoE: DeepSeek V3's router, experts without a gate, maybe on a narrower state; a shared expert."""
    experts = Experts(
        c.count("n_routed_experts", 8),
        c.count("num_experts_per_tok", 2),
        c.count("moe_intermediate_size", 7688),
        c.text("mlp_hidden_act", "relu2"),
        has_gate=False,
    )
    width, bias = x.shape[-1], c.flag("mlp_bias", False)
    narrow = c.count("moe_latent_size") if c.get("moe_latent_size") is not None else width
    declare(net, "mixer.experts", narrow, experts)  # before the router
    rows, groups = flat(x), Groups(c.count("n_group", 1), c.count("topk_group", 1))
    to = scored_router(net, "mixer.gate", rows, experts, groups, c.flag("norm_topk_prob", True), "fp32")
    if narrow != width:
        rows = net.linear("mixer.fc1_latent_proj", rows, narrow, bias)
    out = routed(net, "mixer.experts", rows, to, experts)
    if narrow != width:
        out = net.linear("mixer.fc2_latent_proj", out, width, bias)
    shared = c.count("moe_shared_expert_intermediate_size", 7688)
    return ops.add(out.view(*x.shape), feed_forward(net, c, "mixer.shared_experts", x, shared), "output")


def kinds(c: Config) -> list[LayerKind]:
    """What each layer is, by layers_block_type or the letters of hybrid_override_pattern."""
    given = c.get("layers_block_type") or c.get("layer_types") or c.get("hybrid_override_pattern")
    given = given or ("linear_attention", "moe", "full_attention", "mlp")
    found = [KINDS.get(str(name)) for name in given] if isinstance(given, (str, list, tuple)) else []
    if not 0 < len(found) <= MAX_LAYERS or None in found:
        raise SpecError(f"layers_block_type = {str(given)[:40]!r}: expected a list of {', '.join(KINDS)}")
    return [kind for kind in found if kind is not None]


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``model.embeddings(input_ids)``."""
    return net.embedding("model.embeddings", ids, c.count("vocab_size", 131072), c.count("hidden_size", 4096))


def shape(c: Config) -> Shape:
    """The number of layers is that of their kinds."""
    return Shape(
        len(kinds(c)), c.count("hidden_size", 4096), c.count("vocab_size", 131072), c.get("max_position_embeddings")
    )


ARCHITECTURES = {
    "nemotron_h": Architecture(
        decoder=Decoder(
            layer,
            embed=embed,
            norm=norm,
            norm_name="model.norm_f",
            rotary=lambda c: None,
            after_head=wide_logits,
        ),
        stacks=one_stack(kinds),
        shape=shape,
        refuses=ROUTED,
        mixer_packages=PACKAGES,
        fused_projection="out_proj",
        unadapted=("out_proj", "conv1d"),
    ),
}
