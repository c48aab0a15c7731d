"""GPT-Neo: GPT-2 with separate projections, scores in fp32 without scaling, a mask of all positions in each layer.

Mirrors transformers 5.23, modeling_gpt_neo.py. Layers that attend locally keep the same tensors as the others.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, one_stack
from vramplan.analytic.architectures.decoder import Decoder, layer_norm
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def shape(c: Config) -> Shape:
    """GPT-Neo's own key names; positions are a table."""
    positions = c.count("max_position_embeddings", 2048)
    return Shape(c.count("num_layers"), c.count("hidden_size"), c.count("vocab_size"), positions, hard_limit=True)


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Token plus learned position, then dropout."""
    width = c.count("hidden_size")
    tokens = net.embedding("transformer.wte", ids, c.count("vocab_size"), width)
    where = net.tape.empty((ids.shape[0] if net.generates else 1, ids.shape[1]), "int64", "position ids")
    positions = net.embedding("transformer.wpe", where, c.count("max_position_embeddings", 2048), width)
    net.embedding_locals = [tokens, positions]
    return ops.dropout_layer(ops.add(tokens, positions, "embedding"), c.number("embed_dropout", 0.0))


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Norm, attention, add; norm, feed-forward, add. The model's loop holds the probabilities too."""
    residual, dropout = x, c.number("resid_dropout", 0.0)
    x = net.layer_norm("ln_1", x)
    attended, weights = attention(net, c, x, ctx, kind)  # a local of GPTNeoBlock.forward to its end
    x = ops.add(attended, residual, "residual stream")
    residual = x
    x = net.layer_norm("ln_2", x)
    inner, act = c.count("intermediate_size", 4 * x.shape[-1]), c.text("activation_function", "gelu_new")
    added = ops.dropout_layer(plain_mlp(net, x, "mlp.c_fc", "mlp.c_proj", inner, act), dropout)
    return ops.add(residual, added, "residual stream"), weights


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """GPTNeoSelfAttention."""
    batch, length, width = x.shape
    heads = c.count("num_heads")
    name = "attn.attention"
    q, k, v = (net.linear(f"{name}.{one}_proj", x, width).view(batch, length, heads, width // heads) for one in "qkv")
    net.tape.module = name
    k, v = update_cache(k, v, ctx, kind)
    # torch.where with the layer's own mask takes the place of the usual scaling
    out, weights = attend(ops.to(q, "fp32"), ops.to(k, "fp32"), v, ctx, kind, scores=Softcap(in_fp32=False))
    out = net.linear(f"{name}.out_proj", out, width, True)
    del q, k, v
    return ops.dropout_layer(out, c.number("resid_dropout", 0.0)), weights


def buffers(c: Config) -> list[Input]:
    """A mask of all positions in each layer."""
    positions = c.count("max_position_embeddings", 2048)
    return [Input("layers.* bias", (positions, positions), "bool")] * c.count("num_layers")


ARCHITECTURES = {
    "gpt_neo": Architecture(
        decoder=Decoder(
            layer,
            embed=embed,
            norm=layer_norm,
            norm_name="transformer.ln_f",
            rotary=lambda c: None,
            attention_dropout_is_layer=True,
        ),
        tied=True,
        shape=shape,
        stacks=one_stack(lambda c: [LayerKind()] * c.count("num_layers")),
        buffers=buffers,
        attention=("eager",),  # that of flash-attn is not described
    )
}
