"""ALBERT: one layer that runs again and again behind a narrow embedding (transformers 5.23, modeling_albert.py).

The weights are those of one layer of the only stack, which runs as often as the model has layers.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.bert import BERT, embed, shape, tables, word_loss
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, first_token
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def narrow(c: Config) -> int:
    """Width of the embedding."""
    return c.count("embedding_size", 128)


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """AlbertForMaskedLM: the head shares the embedding's weight and has a bias of its own."""
    net, x = forward.net, encode(forward, c)
    x = net.linear("predictions.dense", x, narrow(c), True)
    x = activation(c.text("hidden_act", "gelu_new"))(x)
    x = net.layer_norm("predictions.LayerNorm", x)
    logits = net.head(x, c.count("vocab_size"), c.flag("tie_word_embeddings", True), bias=True)
    del x
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """AlbertModel without a pooler; the narrow embeddings live until all layers are done."""
    net, layers = forward.net, c.count("num_hidden_layers")
    embedded = embed(forward, c, BERT, narrow(c))
    ctx = forward.context(forward.padding(embedded), c.number("attention_probs_dropout_prob", 0.0))
    x = net.linear("encoder.embedding_hidden_mapping_in", embedded, c.count("hidden_size"), True)
    for number in range(layers):
        group = number * c.count("num_hidden_groups", 1) // layers
        net.enter_layer(forward.phase, 0, x)
        for inner in range(c.count("inner_group_num", 1)):
            x = layer(net, c, f"{group}.albert_layers.{inner}", x, ctx)
    net.tape.enter(forward.phase, None)
    return x


def layer(net: Modules, c: Config, name: str, x: Tensor, ctx: Context) -> Tensor:
    """AlbertLayer: attention, feed-forward; a norm behind each sum."""
    attended, *weights = attention(net, c, f"{name}.attention", x, ctx)
    inner = net.linear(f"{name}.ffn", attended, c.count("intermediate_size"), True)
    inner = activation(c.text("hidden_act", "gelu_new"))(inner)
    inner = net.linear(f"{name}.ffn_output", inner, x.shape[-1], True)
    return net.layer_norm(f"{name}.full_layer_layer_norm", ops.add(inner, attended))


def attention(net: Modules, c: Config, name: str, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """AlbertAttention: the scores stay in the model's dtype."""
    (batch, length, width), heads = x.shape, c.count("num_attention_heads")
    q, k, v = (
        net.linear(f"{name}.{part}", x, width, True).view(batch, length, heads, width // heads)
        for part in ("query", "key", "value")
    )
    out, *weights = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    out = net.linear(f"{name}.dense", out, width, True)
    out = ops.dropout(out, c.number("hidden_dropout_prob", 0.0))
    return net.layer_norm(f"{name}.LayerNorm", ops.add(x, out)), *weights


def pooled(forward: ForwardPass, x: Tensor) -> Tensor:
    """A layer on the first token's state, tanh."""
    return ops.tanh(forward.net.linear("pooler", first_token(x), x.shape[2], True))


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """AlbertForSequenceClassification."""
    first = ops.dropout(pooled(forward, x), c.number("classifier_dropout_prob", 0.1))
    return forward.net.linear("classifier", first, labels, True, head=True)


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """AlbertForTokenClassification."""
    chosen = c.get("classifier_dropout_prob")
    x = ops.dropout(x, c.number("hidden_dropout_prob", 0.0) if chosen is None else float(chosen))
    return forward.net.linear("classifier", x, labels, True, head=True)


ARCHITECTURES = {
    "albert": Architecture(
        masked_lm,
        encode=encode,
        pooler=pooled,
        heads=Heads(classes, token_classes),
        stacks=lambda c: alike(1),
        shape=shape,
        buffers=tables,
        checkpoints=False,
        zero3_stops="a layer that runs several times is not modelled there",
        defaults={"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
}
