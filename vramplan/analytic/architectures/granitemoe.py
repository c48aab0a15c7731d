"""Granite 3's mixtures, with and without a feed-forward for all tokens (transformers 5.23, modeling_<type>.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, times
from vramplan.analytic.architectures.llama import granite_embed
from vramplan.analytic.architectures.mamba2 import granite_experts, shared_mlp
from vramplan.analytic.architectures.moe import ROUTED
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def granite_moe(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, experts, add. Both branches are scaled."""
    bias = c.flag("attention_bias", False)
    residual = x
    x = net.rms_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, ops.scale(x), "residual stream")
    residual = x
    x = net.rms_norm("post_attention_layernorm", x)
    chosen = granite_experts(net, c, x)  # with a shared feed-forward, a local to the end of the layer
    if c.get("shared_intermediate_size", 0):
        x = ops.add(chosen, shared_mlp(net, c, x), "output")
    else:
        x = chosen
        del chosen
    return ops.add(residual, ops.scale(x), "residual stream")


DECODER = Decoder(granite_moe, embed=granite_embed, after_head=times)
ARCHITECTURES = {
    "granitemoe": Architecture(decoder=DECODER, refuses=(*ROUTED, ("shared_intermediate_size", ...))),
    "granitemoeshared": Architecture(decoder=DECODER, refuses=ROUTED),
}
