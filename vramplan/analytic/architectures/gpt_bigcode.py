"""StarCoder 1 and SantaCoder: GPT-2 whose queries share one head of keys and values.

Mirrors transformers 5.23, modeling_gpt_bigcode.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, layer_norm
from vramplan.analytic.architectures.gpt import by_layer_count, gpt2_embed, gpt_shape
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual, dropout = x, c.number("resid_pdrop", 0.1)
    x = net.layer_norm("ln_1", x)
    attended, *weights = attention(net, c, x, ctx, kind)  # a local of GPTBigCodeBlock.forward to its end
    x = ops.add(attended, residual, "residual stream")
    residual = x
    x = net.layer_norm("ln_2", x)
    inner, act = c.count("n_inner", 4 * x.shape[-1]), c.text("activation_function", "gelu_pytorch_tanh")
    added = ops.dropout_layer(plain_mlp(net, x, "mlp.c_fc", "mlp.c_proj", inner, act), dropout)
    return ops.add(residual, added, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """GPTBigCodeAttention: one projection, cut into all queries, one key and one value; or laid out head by head."""
    batch, length, width = x.shape
    heads = c.count("n_head", 12)
    dim = width // heads
    if c.flag("multi_query", True):
        q, k, v = ops.split(net.linear("attn.c_attn", x, width + 2 * dim, True), width, dim, dim)
        q, k, v = q.view(batch, length, heads, dim), k.view(batch, length, 1, dim), v.view(batch, length, 1, dim)
    else:
        joint = net.linear("attn.c_attn", x, 3 * width, True).view(batch, length, heads, 3 * dim)
        q, k, v = ops.split(ops.heads_first(joint), dim, dim, dim)
        del joint
    net.tape.module = "attn"
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    out = net.linear("attn.c_proj", out, width, True)
    return ops.dropout_layer(out, c.number("resid_pdrop", 0.1)), *weights


def buffers(c: Config) -> list[Input]:
    """A mask of all positions, which nothing uses any more."""
    positions = c.count("n_positions", 1024)
    return [Input("bias", (positions, positions), "bool")]


ARCHITECTURES = {
    "gpt_bigcode": Architecture(
        decoder=Decoder(
            layer,
            embed=gpt2_embed,
            norm=layer_norm,
            norm_name="transformer.ln_f",
            rotary=lambda c: None,
            attention_dropout=("attn_pdrop", 0.1),
        ),
        tied=True,
        shape=gpt_shape,
        stacks=one_stack(by_layer_count),
        buffers=buffers,
        refuses=(("add_cross_attention", True),),
    )
}
