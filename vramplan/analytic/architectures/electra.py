"""ELECTRA: BERT with a narrow embedding that is widened (transformers 5.23, modeling_electra.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.bert import BERT, embed, layer, shape, tables, word_loss
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, classifier_dropout, first_token, token_classes
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.mlp import activation
from vramplan.inputs.model_spec import Config


def narrow(c: Config) -> int:
    """Width of the embedding."""
    return c.count("embedding_size", 128)


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """ElectraModel, without a pooler; the embeddings, widened if they are narrow, live until all layers are done."""
    embedded = embed(forward, c, BERT, narrow(c))
    if narrow(c) != c.count("hidden_size"):
        embedded = forward.net.linear("embeddings_project", embedded, c.count("hidden_size"), True)
    ctx = forward.context(forward.padding(embedded), c.number("attention_probs_dropout_prob", 0.1))
    return forward.layers(0, embedded, lambda x: layer(forward.net, c, x, ctx))


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """ElectraForMaskedLM, the generator: the head shares the embedding's weight and has a bias of its own."""
    net, hidden = forward.net, encode(forward, c)
    x = activation("gelu")(net.linear("generator_predictions.dense", hidden, narrow(c), True))
    x = net.layer_norm("generator_predictions.LayerNorm", x)
    logits = net.head(x, c.count("vocab_size"), c.flag("tie_word_embeddings", True), bias=True)
    del x
    return ModelOutput(word_loss(forward, logits), [logits])


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """ElectraClassificationHead, which is one module and trains as a whole: GELU where RoBERTa has tanh."""
    net, dropout = forward.net, classifier_dropout(c)
    first = ops.dropout(first_token(x), dropout)
    first = activation("gelu")(net.linear("classifier.dense", first, x.shape[2], True, head=True))
    return net.linear("classifier.out_proj", ops.dropout(first, dropout), labels, True, head=True)


ARCHITECTURES = {
    "electra": Architecture(
        masked_lm,
        encode=encode,
        heads=Heads(classes, token_classes),
        stacks=lambda c: alike(c.count("num_hidden_layers")),
        shape=shape,
        buffers=tables,
        refuses=(("is_decoder", True),),
    )
}
