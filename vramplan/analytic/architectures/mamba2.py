"""Mamba 2 and Granite 4: state spaces, alone or with attention (transformers 5.23, modeling_<type>.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary, full_rotary, times
from vramplan.analytic.architectures.llama import granite_embed
from vramplan.analytic.architectures.moe import ROUTED
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.attention_kernels import softmax_as_it_is
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mamba import gated_norm, mixer
from vramplan.analytic.layers.mamba_sizes import Mixer
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, routed, router_weight
from vramplan.inputs.model_spec import Config

PACKAGES = "mamba-ssm and causal-conv1d"

# -- Mamba 2 -----------------------------------------------------------------------------------------------------------


def mamba2_sizes(c: Config) -> Mixer:
    """The mixer of a Mamba 2."""
    return Mixer(
        c.count("num_heads", 128),
        c.count("head_dim", 64),
        c.count("n_groups", 8),
        c.count("state_size", 128),
        c.count("conv_kernel", 4),
        c.count("chunk_size", 256),
        c.text("hidden_act", "silu"),
        c.flag("use_bias", False),
        c.flag("use_bias", False),
        c.flag("use_conv_bias", True),
    )


def mamba2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, mixer, add; the residual stream may be fp32."""
    residual = x
    x = net.rms_norm("norm", ops.to(x, net.training.dtype))
    if c.flag("residual_in_fp32", True):
        residual = ops.to(residual, "fp32")
    x = mixer(net, "mixer", x, ctx, mamba2_sizes(c), gated_norm)
    return ops.add(residual, x, "residual stream")


def mamba2_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``backbone.embeddings(input_ids)``."""
    return net.embedding("backbone.embeddings", ids, c.count("vocab_size"), c.count("hidden_size"))


def cast_for_head(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``hidden_states.to(self.lm_head.weight.dtype)``."""
    return ops.to(x, net.training.dtype)


def wide_logits(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``lm_head(...).float()``."""
    return ops.to(x, "fp32", "logits in fp32")


def recurrent_kinds(c: Config) -> list[LayerKind]:
    """No layer attends."""
    return [LayerKind(recurrent=True)] * c.count("num_hidden_layers")


# -- Granite 4 ---------------------------------------------------------------------------------------------------------


def granite_sizes(c: Config) -> Mixer:
    """The mixer of a Granite 4; the width of a head may be left open."""
    heads, given = c.count("mamba_n_heads", 128), c.get("mamba_d_head", "auto")
    bias = c.flag("mamba_proj_bias", False)
    return Mixer(
        heads,
        c.count("mamba_expand", 2) * c.count("hidden_size") // heads if given == "auto" else c.count("mamba_d_head"),
        c.count("mamba_n_groups", 1),
        c.count("mamba_d_state", 256),
        c.count("mamba_d_conv", 4),
        c.count("mamba_chunk_size", 256),
        c.text("hidden_act", "silu"),
        bias,
        bias,
        c.flag("mamba_conv_bias", True),
    )


def granite_hybrid(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Granite 4: mixer or attention, then experts and a feed-forward for all tokens; every branch is scaled."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    weights: list[Tensor] = []
    if kind.recurrent:
        x = mixer(net, "mamba", x, ctx, granite_sizes(c), gated_norm)
    else:
        bias = c.flag("attention_bias", False)
        x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, ops.scale(x), "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    if has_experts(c):
        chosen = granite_experts(net, c, x)
        x = ops.add(chosen, shared_mlp(net, c, x), "output")
        del chosen
    else:
        x = shared_mlp(net, c, x)
    return ops.add(residual, ops.scale(x), "residual stream")


def has_experts(c: Config) -> bool:
    """Whether there are experts: a dense Granite 4 has 0."""
    return bool(c.get("num_local_experts", 8))


def shared_mlp(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``output(act(a) * b)`` of the two halves of one projection."""
    inner, width = c.count("shared_intermediate_size", 1024), x.shape[-1]
    joint = net.linear("shared_mlp.input_linear", x, 2 * inner)
    first, second = ops.split(joint, inner, inner)
    product = ops.mul(activation(c.text("hidden_act", "silu"))(first), second)
    return net.linear("shared_mlp.output_linear", product, width)


def granite_experts(net: Modules, c: Config, x: Tensor) -> Tensor:
    """GraniteMoeHybridMoE: a softmax over the best logits alone."""
    experts = Experts(
        c.count("num_local_experts", 8),
        c.count("num_experts_per_tok", 2),
        c.count("intermediate_size"),
        c.text("hidden_act", "silu"),
    )
    rows = x.view(x.num_elements // x.shape[-1], x.shape[-1])
    weight = router_weight(net, "block_sparse_moe.router", experts.number, x.shape[-1])
    net.tape.module = "block_sparse_moe.router"
    logits = ops.to(ops.linear(rows, weight, None, "router logits"), "fp32", "router logits in fp32")
    best, which = ops.top(logits, experts.top, "logits of a token's experts")
    shares = ops.to(softmax_as_it_is(best), x.dtype, "shares of a token's experts")
    del best
    return routed(net, "block_sparse_moe.experts", rows, (shares, which), experts).view(*x.shape)


def granite_kinds(c: Config) -> list[LayerKind]:
    """Layers that attend by layer_types; without it, none does."""
    types, rotates = c.get("layer_types"), c.get("position_embedding_type") == "rope"
    types = types or ["mamba"] * c.count("num_hidden_layers")
    return [
        LayerKind(rotary=rotates, recurrent="attention" not in name or name == "linear_attention") for name in types
    ]


def granite_rotary(c: Config) -> Rotary | None:
    """Rotary over the whole head, or no positions."""
    return full_rotary(c) if c.get("position_embedding_type") == "rope" else None


ARCHITECTURES = {
    "granitemoehybrid": Architecture(
        decoder=Decoder(
            granite_hybrid, embed=granite_embed, after_head=times, rotary=granite_rotary, positions_in_mask=False
        ),
        stacks=one_stack(granite_kinds),
        refuses=ROUTED,
        mixer_packages=PACKAGES,
        fused_projection="out_proj",
    ),
    "mamba2": Architecture(
        decoder=Decoder(
            mamba2,
            embed=mamba2_embed,
            norm_name="backbone.norm_f",
            rotary=lambda c: None,
            before_head=cast_for_head,
            after_head=wide_logits,
        ),
        stacks=one_stack(recurrent_kinds),
        mixer_packages=PACKAGES,
        fused_projection="out_proj",
        unadapted=("out_proj", "conv1d"),
        attention=("eager",),
    ),
}
