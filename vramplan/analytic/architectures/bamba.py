"""Bamba: Mamba 2 mixers, attention in some layers, a feed-forward in all (transformers 5.23, modeling_bamba.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.mamba2 import PACKAGES, granite_sizes
from vramplan.analytic.architectures.phi import partial
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mamba import gated_norm, mixer
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.inputs.model_spec import Config


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: on half of each head."""
    q, k = partial_rotary(q, k, ctx, kind)
    return q, k


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Norm, mixer or attention, add; norm, feed-forward, add; the weights of eager attention."""
    residual = x
    x = net.rms_norm("input_layernorm", x)
    weights: list[Tensor] = []
    if kind.recurrent:
        x = mixer(net, "mamba", x, ctx, granite_sizes(c), gated_norm)
    else:
        bias = c.flag("attention_bias", False)
        x, *weights = attention(net, c, x, ctx, kind, bias, bias, turn=turned, contiguous=True)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("pre_ff_layernorm", x)
    x = gated(
        net, "feed_forward", x, c.count("intermediate_size"), c.text("hidden_act", "silu"), c.flag("mlp_bias", False)
    )
    return ops.add(residual, x, "residual stream"), *weights


def kinds(c: Config) -> list[LayerKind]:
    """Layers that attend by number."""
    attends = c.get("attn_layer_indices") or ()
    return [LayerKind(recurrent=layer not in attends) for layer in range(c.count("num_hidden_layers", 32))]


ARCHITECTURES = {
    "bamba": Architecture(
        decoder=Decoder(layer, norm_name="model.final_layernorm", rotary=partial(0.5)),
        stacks=one_stack(kinds),
        refuses=(("z_loss_coefficient", ...),),
        mixer_packages=PACKAGES,
        fused_projection="out_proj",
    )
}
