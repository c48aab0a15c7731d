"""Jais 2: Llama with LayerNorms and a feed-forward without a gate (transformers 5.23, modeling_jais2.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, layer_norm
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    bias, width = c.flag("attention_bias", True), c.count("intermediate_size", 26624)
    residual = x
    x = net.layer_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.layer_norm("post_attention_layernorm", x)
    act = c.text("hidden_act", "relu2")
    x = plain_mlp(net, x, "mlp.up_proj", "mlp.down_proj", width, act, c.flag("mlp_bias", True))
    return ops.add(residual, x, "residual stream")


ARCHITECTURES = {"jais2": Architecture(decoder=Decoder(layer, norm=layer_norm))}
