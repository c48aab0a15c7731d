"""OLMo: Llama with LayerNorms in fp32 that have no weights, rotary in fp32, maybe clipped projections.

Mirrors transformers 5.23, modeling_olmo.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """OlmoLayerNorm."""
    net.tape.module = name
    return ops.to(ops.layer_norm(ops.to(x, "fp32"), None, None), x.dtype, "output")


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: in fp32, both cast back at the end."""
    dtype = q.dtype
    q, k = rotary(q, k, ctx, kind)
    return ops.to(q, dtype, "rotated"), ops.to(k, dtype, "rotated")


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    bias = c.flag("attention_bias", False)
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias, turn=turned)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "post_attention_layernorm", x)
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"))
    return ops.add(residual, x, "residual stream")


ARCHITECTURES = {
    "olmo": Architecture(
        decoder=Decoder(layer, norm=norm, rotary=lambda c: Rotary(heads_of(c).dim, fp32=True)),
        refuses=(("clip_qkv", ...),),
    )
}
