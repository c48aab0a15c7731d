"""Falcon-H1: a Mamba 2 mixer and attention side by side in every layer (transformers 5.23, modeling_falcon_h1.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, times
from vramplan.analytic.architectures.llama import granite_embed
from vramplan.analytic.architectures.mamba2 import PACKAGES
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mamba import mixer
from vramplan.analytic.layers.mamba_sizes import Mixer
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, rotary
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def mixer_sizes(c: Config) -> Mixer:
    """The mixer; its width is mamba_d_ssm, or mamba_expand times the model's if that is null."""
    heads, given = c.count("mamba_n_heads", 128), c.get("mamba_d_head", "auto")
    open_width = c.has("mamba_d_ssm") and c.get("mamba_d_ssm") is None
    inner = c.count("mamba_expand", 2) * c.count("hidden_size") if open_width else c.count("mamba_d_ssm", 1024)
    return Mixer(
        heads,
        inner // heads if given == "auto" else c.count("mamba_d_head"),
        c.count("mamba_n_groups", 1),
        c.count("mamba_d_state", 256),
        c.count("mamba_d_conv", 4),
        c.count("mamba_chunk_size", 256),
        c.text("hidden_act", "silu"),
        c.flag("mamba_proj_bias", False),
        c.flag("projectors_bias", False),
        c.flag("mamba_conv_bias", True),
        gate_first=not c.flag("mamba_norm_before_gate", True),
    )


def projected_width(sizes: Mixer) -> int:
    """Width of the mixer's first projection, and of the numbers that it is multiplied by."""
    return sizes.inner + sizes.convolved + sizes.heads


def group_norm(net: Modules, name: str, x: Tensor, gate: Tensor, sizes: Mixer) -> Tensor:
    """FalconH1RMSNormGated: an RMS norm of each group in fp32, the gate before or behind it."""
    net.tape.module = name
    weight, dtype, shape = net.parameter(f"{name}.weight", x.shape[-1]), x.dtype, x.shape
    if sizes.gate_first:
        x = ops.mul(x, ops.silu(ops.to(gate, "fp32")), "gated in fp32")
    x = ops.to(x, "fp32").view(*shape[:-1], sizes.groups, shape[-1] // sizes.groups)
    variance = ops.mean(ops.square(x))
    x = ops.mul(x, ops.rsqrt(ops.shift(variance)), "normalised")
    x = ops.mul(weight.view(*x.shape[-2:]), x, "output in fp32").view(*shape)
    if not sizes.gate_first:
        x = ops.mul(x, ops.silu(ops.to(gate, "fp32")), "gated in fp32")
    return ops.to(x, dtype, "output")


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor]:
    """One norm, mixer and attention of it, added; norm, feed-forward, add. All branches are scaled."""
    sizes = mixer_sizes(c)

    def by_column(projected: Tensor) -> Tensor:
        numbers = net.resident((1, 1, projected_width(sizes)), net.training.dtype)
        return ops.mul(projected, numbers, "scaled projection")

    residual = x
    x = net.rms_norm("input_layernorm", x)
    norm = group_norm if c.flag("mamba_rms_norm", False) else None
    mixed = mixer(net, "mamba", x, ctx, sizes, norm, (ops.scale, by_column))
    mixed = ops.scale(mixed)  # this and the attention's output are locals to the end of the layer
    attended, *weights = attention(net, c, ops.scale(x), ctx, kind)
    attended = ops.scale(attended)
    x = ops.add(mixed, attended, "output")
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("pre_ff_layernorm", x)
    x = feed_forward(net, c, x)
    return (ops.add(residual, x, "residual stream"),)


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Llama's attention with scaled keys."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    kv_first = heads_first_grads(q, heads.key, ctx, kind)[1]
    q = ops.heads_first(q)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    k = ops.scale(ops.heads_first(k), "scaled keys")
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if kv_first:
        v = ops.heads_first(v)
    net.tape.module = "self_attn"
    q, k = rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``down(up(x) * act(gate(x) * number)) * number``."""
    inner, bias, width = c.count("intermediate_size", 14336), c.flag("mlp_bias", False), x.shape[-1]
    up = net.linear("feed_forward.up_proj", x, inner, bias)
    gate = ops.scale(net.linear("feed_forward.gate_proj", x, inner, bias), "scaled gate")
    product = ops.mul(up, activation(c.text("hidden_act", "silu"))(gate))
    del up, gate
    return ops.scale(net.linear("feed_forward.down_proj", product, width, bias))


def kinds(c: Config) -> list[LayerKind]:
    """All layers have both."""
    return [LayerKind(recurrent=True, hybrid=True)] * c.count("num_hidden_layers", 32)


def numbers(c: Config) -> list[Input]:
    """``mup_vector`` of each layer."""
    return [Input("mup_vector", (projected_width(mixer_sizes(c)),), "bf16")] * c.count("num_hidden_layers", 32)


ARCHITECTURES = {
    "falcon_h1": Architecture(
        decoder=Decoder(
            layer,
            embed=granite_embed,
            norm_name="model.final_layernorm",
            after_head=times,
            positions_in_mask=True,
        ),
        stacks=one_stack(kinds),
        buffers=numbers,
        mixer_packages=PACKAGES,
        fused_projection="out_proj",
        unadapted=("out_proj", "conv1d"),
    ),
}
