"""DistilBERT: BERT without kinds of sentence and without a pooler (transformers 5.23, modeling_distilbert.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.bert import word_loss
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, first_token
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def shape(c: Config) -> Shape:
    """DistilBERT's keys."""
    return Shape(c.count("n_layers", 6), c.count("dim", 768), c.count("vocab_size"), None)


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """DistilBertForMaskedLM."""
    net, hidden = forward.net, encode(forward, c)
    x = net.linear("vocab_transform", hidden, hidden.shape[-1], True)
    x = activation(c.text("activation", "gelu"))(x)
    x = net.layer_norm("vocab_layer_norm", x)
    logits = net.head(x, c.count("vocab_size"), c.flag("tie_word_embeddings", True), bias=True)
    del x
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """DistilBertModel; the embeddings live until all layers are done."""
    embedded = embed(forward, c)
    ctx = forward.context(forward.padding(embedded), c.number("attention_dropout", 0.1))
    return forward.layers(0, embedded, lambda x: layer(forward.net, c, x, ctx))


def embed(forward: ForwardPass, c: Config) -> Tensor:
    """Words and positions."""
    net, ids, width = forward.net, forward.inputs["input_ids"], c.count("dim", 768)
    where = net.resident((1, ids.shape[1]), "int64")
    words = net.embedding("embeddings.word_embeddings", ids, c.count("vocab_size"), width)
    most = c.count("max_position_embeddings", 512)
    positions = net.embedding("embeddings.position_embeddings", where, most, width)
    x = ops.add(words, positions)
    x = net.layer_norm("embeddings.LayerNorm", x)
    return ops.dropout(x, c.number("dropout", 0.1))


def layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """TransformerBlock: a norm behind each sum; eager attention's weights live until its end."""
    attended, *weights = attention(net, c, x, ctx)
    attended = net.layer_norm("sa_layer_norm", ops.add(attended, x))
    out = net.linear("ffn.lin1", attended, c.count("hidden_dim", 3072), True)
    out = activation(c.text("activation", "gelu"))(out)
    out = net.linear("ffn.lin2", out, x.shape[-1], True)
    out = ops.dropout(out, c.number("dropout", 0.1))
    return net.layer_norm("output_layer_norm", ops.add(out, attended))


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """DistilBertSelfAttention."""
    batch, length, width = x.shape
    heads = c.count("n_heads", 12)
    q, k, v = (
        net.linear(f"attention.{name}", x, width, True).view(batch, length, heads, width // heads)
        for name in ("q_lin", "k_lin", "v_lin")
    )
    out, *weights = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("attention.out_lin", out, width, True), *weights


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """DistilBertForSequenceClassification: a layer on the first token's state, ReLU."""
    net = forward.net
    first = first_token(x)
    first = net.linear("pre_classifier", first, x.shape[2], True)
    first = ops.relu(first)
    first = ops.dropout(first, c.number("seq_classif_dropout", 0.2))
    return net.linear("classifier", first, labels, True, head=True)


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """DistilBertForTokenClassification."""
    return forward.net.linear("classifier", ops.dropout(x, c.number("dropout", 0.1)), labels, True, head=True)


def tables(c: Config) -> list[Input]:
    """Positions."""
    return [Input("position_ids", (1, c.count("max_position_embeddings", 512)))]


ARCHITECTURES = {
    "distilbert": Architecture(
        masked_lm,
        encode=encode,
        heads=Heads(classes, token_classes),
        stacks=lambda c: alike(c.count("n_layers", 6)),
        shape=shape,
        buffers=tables,
    ),
}
