"""BitNet: Llama with a norm in front of each branch's last layer (transformers 5.23, modeling_bitnet.py).

Weights in 16 bits; those packed in two are a quantized checkpoint.
"""

from __future__ import annotations

from functools import partial

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.moe import layer
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary
from vramplan.inputs.model_spec import Config


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """BitNetAttention."""
    heads, bias = heads_of(c), c.flag("attention_bias", False)
    batch, length, width = x.shape
    q, k, v = (
        net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    net.tape.module = "self_attn"
    q, k = rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    out = net.rms_norm("self_attn.attn_sub_norm", out)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def feed_forward(net: Modules, c: Config, x: Tensor, kind: LayerKind) -> Tensor:
    """BitNetMLP."""
    width = c.count("intermediate_size", 6912)
    product = ops.mul(
        activation(c.text("hidden_act", "relu2"))(net.linear("mlp.gate_proj", x, width)),
        net.linear("mlp.up_proj", x, width),
    )
    return net.linear("mlp.down_proj", net.rms_norm("mlp.ffn_sub_norm", product), x.shape[-1])


ARCHITECTURES = {"bitnet": Architecture(decoder=Decoder(partial(layer, attends=attention, feeds=feed_forward)))}
