"""BERT and RoBERTa trained to fill in words (transformers 5.23, modeling_bert.py, modeling_roberta.py)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import BERT_HEADS, ROBERTA_HEADS, pooled
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def shape(c: Config) -> Shape:
    """The keys of BERT and RoBERTa; :mod:`vramplan.inputs.model_inputs` has the longest text."""
    return Shape(c.count("num_hidden_layers"), c.count("hidden_size"), c.count("vocab_size"), None)


class Variant(NamedTuple):
    """Differences between BERT and RoBERTa."""

    head: tuple[str, str]
    """The head's layer and norm before the last layer."""
    act: str | None
    """The head's activation; None is the layers'."""
    counts: bool
    """Whether positions are counted from the ids, for each sample."""


BERT = Variant(("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"), None, counts=False)
ROBERTA = Variant(("lm_head.dense", "lm_head.layer_norm"), "gelu", counts=True)


def masked_lm(forward: ForwardPass, c: Config, variant: Variant = BERT) -> ModelOutput:
    """BertForMaskedLM: every position's logits, a cross-entropy in their own dtype."""
    hidden = encode(forward, c, variant)
    logits = words(forward.net, c, hidden, variant)
    return ModelOutput(word_loss(forward, logits), [logits])


def words(net: Modules, c: Config, x: Tensor, variant: Variant = BERT) -> Tensor:
    """BertLMPredictionHead: the last layer shares the embedding's weight and has a bias of its own."""
    dense, norm = variant.head
    x = net.linear(dense, x, x.shape[-1], True)
    x = activation(variant.act or c.text("hidden_act", "gelu"))(x)
    x = net.layer_norm(norm, x)
    return net.head(x, c.count("vocab_size"), c.flag("tie_word_embeddings", True), bias=True)


def word_loss(forward: ForwardPass, logits: Tensor) -> Tensor:
    """CrossEntropyLoss over all rows."""
    forward.tape.module = "loss"
    rows = logits.view(logits.num_elements // logits.shape[-1], logits.shape[-1])
    return losses.cross_entropy(rows, forward.inputs["labels"])


def encode(forward: ForwardPass, c: Config, variant: Variant) -> Tensor:
    """BertModel without a pooler; the embeddings live until all layers are done."""
    embedded = embed(forward, c, variant)
    ctx = forward.context(forward.padding(embedded), c.number("attention_probs_dropout_prob", 0.1))
    return forward.layers(0, embedded, lambda x: layer(forward.net, c, x, ctx))


def embed(forward: ForwardPass, c: Config, variant: Variant, narrow: int | None = None) -> Tensor:
    """Words, kinds of sentence (all of one kind, picked by position from a table), positions.

    `narrow`: their width, if it is not the layers' (ELECTRA).
    """
    net, ids, width, name = forward.net, forward.inputs["input_ids"], narrow or c.count("hidden_size"), "embeddings"
    where = counted_positions(net, ids) if variant.counts else net.resident((1, ids.shape[1]), "int64")
    picked = net.tape.empty(where.shape, "int64", "kinds of sentence")
    kinds = Tensor(net.tape, picked.storage, ids.shape, "int64")  # the same for all samples
    words = net.embedding(f"{name}.word_embeddings", ids, c.count("vocab_size"), width)
    sentences = net.embedding(f"{name}.token_type_embeddings", kinds, c.count("type_vocab_size", 2), width)
    x = ops.add(words, sentences)
    positions = net.embedding(f"{name}.position_embeddings", where, c.count("max_position_embeddings", 512), width)
    x = ops.add(x, positions)
    x = net.layer_norm(f"{name}.LayerNorm", x)
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.1))


def counted_positions(net: Modules, ids: Tensor) -> Tensor:
    """create_position_ids_from_input_ids: padding is not counted."""
    net.tape.module = "embeddings"
    whole = [net.tape.empty(ids.shape, "int64", "tokens counted") for _ in range(2)]
    return whole[-1]


def layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Attention, feed-forward; a norm behind each sum."""
    attended, *weights = attention(net, c, x, ctx)
    inner = net.linear("intermediate.dense", attended, c.count("intermediate_size"), True)
    inner = activation(c.text("hidden_act", "gelu"))(inner)
    return add_and_norm(net, c, "output", inner, attended)


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """Every word to every word; the scores stay in the model's dtype."""
    out, *weights = self_attention(net, c, x, ctx)
    return add_and_norm(net, c, "attention.output", out, x), *weights


def self_attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """BertSelfAttention."""
    batch, length, width = x.shape
    heads = c.count("num_attention_heads")
    q, k, v = (
        net.linear(f"attention.self.{name}", x, width, True).view(batch, length, heads, width // heads)
        for name in ("query", "key", "value")
    )
    return attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))


def add_and_norm(net: Modules, c: Config, name: str, x: Tensor, residual: Tensor) -> Tensor:
    """BertSelfOutput, BertOutput: a layer, dropout, the sum, its norm."""
    x = net.linear(f"{name}.dense", x, residual.shape[-1], True)
    x = ops.dropout(x, c.number("hidden_dropout_prob", 0.1))
    return net.layer_norm(f"{name}.LayerNorm", ops.add(x, residual))


def tables(c: Config) -> list[Input]:
    """Positions and kinds of sentence."""
    positions = c.count("max_position_embeddings", 512)
    return [Input("position_ids", (1, positions)), Input("token_type_ids", (1, positions))]


ARCHITECTURES = {
    "bert": Architecture(
        masked_lm,
        encode=partial(encode, variant=BERT),
        pooler=pooled,
        heads=BERT_HEADS,
        stacks=lambda c: alike(c.count("num_hidden_layers")),
        shape=shape,
        buffers=tables,
        refuses=(("is_decoder", True), ("position_embedding_type", "relative_key")),
    ),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"),
        Architecture(
            partial(masked_lm, variant=ROBERTA),
            encode=partial(encode, variant=ROBERTA),
            pooler=pooled,
            heads=ROBERTA_HEADS,
            stacks=lambda c: alike(c.count("num_hidden_layers")),
            shape=shape,
            buffers=tables,
            refuses=(("is_decoder", True),),
        ),
    ),
}
