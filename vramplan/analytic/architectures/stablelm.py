"""StableLM: LayerNorms, partial rotary, biases of q, k and v, branches in turn or side by side.

Mirrors transformers 5.23, modeling_stablelm.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, layer_norm
from vramplan.analytic.architectures.phi import partial
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import partial_rotary
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add; or one norm in front of both."""
    act, dropout = c.text("hidden_act", "silu"), c.number("hidden_dropout", 0.0)
    residual = x
    x = layer_norm(net, "input_layernorm", x)
    out, *weights = attention(net, c, x, ctx, kind)
    if c.flag("use_parallel_residual", False):
        fed = ops.dropout_layer(gated_mlp(net, c, x, act), dropout)
        return ops.add(ops.add(residual, out, "residual stream"), fed, "residual stream")
    residual = ops.add(residual, out, "residual stream")
    fed = ops.dropout_layer(gated_mlp(net, c, layer_norm(net, "post_attention_layernorm", residual), act), dropout)
    return ops.add(residual, fed, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """StableLmAttention, whose locals live until its end."""
    heads, bias = heads_of(c), c.flag("use_qkv_bias", False)
    batch, length, width = x.shape
    q, k, v = (
        net.linear(f"self_attn.{name}_proj", x, count * heads.dim, bias).view(batch, length, count, heads.dim)
        for name, count in (("q", heads.query), ("k", heads.key), ("v", heads.key))
    )
    net.tape.module = "self_attn"
    q, k = ops.heads_first(q), ops.heads_first(k)
    q, k, *pieces = partial_rotary(q, k, ctx, kind, keeps=True)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    out = net.linear("self_attn.o_proj", out, width)
    del q, k, v, pieces
    return out, *weights


ARCHITECTURES = {
    "stablelm": Architecture(
        decoder=Decoder(layer, norm=layer_norm, rotary=partial(0.25)), refuses=(("qk_layernorm", True),)
    )
}
