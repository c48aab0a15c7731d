"""BERT with rotary positions and a gated feed-forward: Nomic BERT and GTE.

transformers 5.23 (modeling_nomic_bert.py, modeling_gte.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.bert import ROBERTA, Variant, word_loss, words
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import BERT_HEADS
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attention
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary_tables
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

KIND = LayerKind()


class Relative(NamedTuple):
    """Differences between Nomic BERT and GTE."""

    head: Variant
    """The head of words."""
    biased: bool
    """Whether layers have a bias, but for gate and up of the feed-forward, and the feed-forward a dropout."""


NOMIC = Relative(
    Variant(("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"), None, counts=False), False
)
GTE = Relative(ROBERTA, True)


def masked_lm(forward: ForwardPass, c: Config, model: Relative) -> ModelOutput:
    """NomicBertForMaskedLM, GteForMaskedLM: BERT's head, RoBERTa's."""
    logits = words(forward.net, c, encode(forward, c, model), model.head)
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config, model: Relative) -> Tensor:
    """NomicBertModel, GteModel; embeddings, mask and rotary tables live to its end."""
    net = forward.net
    net.tape.module = "inputs"
    positions = net.tape.empty((1, forward.inputs["input_ids"].shape[1]), "int64", "position ids")
    embedded = embed(forward, c)
    ctx = forward.context(forward.padding(embedded), c.number("attention_probs_dropout_prob", 0.0))
    net.tape.module = "rotary_emb"
    ctx.cos[False], ctx.sin[False] = rotary_tables(net.tape, 1, embedded.shape[1], heads_of(c).dim, embedded.dtype)
    x = forward.layers(0, embedded, lambda x: layer(net, c, x, ctx, model.biased))
    del positions
    return x


def embed(forward: ForwardPass, c: Config) -> Tensor:
    """Words and, if the model tells them apart, kinds of sentence, all of one kind; a norm."""
    net, ids, width, name = forward.net, forward.inputs["input_ids"], c.count("hidden_size"), "embeddings"
    x = words = net.embedding(f"{name}.word_embeddings", ids, c.count("vocab_size"), width)
    if c.number("type_vocab_size", 2):
        kinds = net.tape.empty(ids.shape, "int64", "kinds of sentence")
        x = ops.add(words, net.embedding(f"{name}.token_type_embeddings", kinds, c.count("type_vocab_size", 2), width))
    del words
    x = net.layer_norm(f"{name}.LayerNorm", x)
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.0))


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, biased: bool) -> Tensor:
    """Attention, add, norm; gated feed-forward, add, norm."""
    dropout, residual = c.number("hidden_dropout_prob", 0.0), x
    out, *weights = attention(net, c, x, ctx, KIND, biased, biased, scores=Softcap(in_fp32=False, casts=False))
    x = net.layer_norm("post_attention_layernorm", ops.add(residual, ops.dropout(out, dropout)))
    residual = x
    x = ops.add(residual, ops.dropout(feed_forward(net, c, x, biased), dropout))
    return net.layer_norm("post_mlp_layernorm", x)


def feed_forward(net: Modules, c: Config, x: Tensor, biased: bool) -> Tensor:
    """NomicBertMLP, GteMLP."""
    wide, act = c.count("intermediate_size"), activation(c.text("hidden_act", "gelu"))
    product = ops.mul(act(net.linear("mlp.gate_proj", x, wide)), net.linear("mlp.up_proj", x, wide))
    product = ops.dropout(product, c.number("hidden_dropout_prob", 0.0) if biased else 0.0)
    return net.linear("mlp.down_proj", product, x.shape[-1], biased)


def frequencies(c: Config) -> list[Input]:
    """Rotary frequencies, and a copy of them."""
    return [Input("rotary frequencies", (heads_of(c).dim // 2,), "fp32")] * 2


def tables(c: Config) -> list[Input]:
    """Positions and kinds of sentence beside them."""
    rows = (1, c.count("max_position_embeddings", 2048))
    return [Input("position_ids", rows), Input("token_type_ids", rows), *frequencies(c)]


def described(model: Relative, buffers: Callable[[Config], list[Input]], **defaults: object) -> Architecture:
    """The record of one of them."""
    return Architecture(
        partial(masked_lm, model=model),
        encode=partial(encode, model=model),
        heads=BERT_HEADS,
        tied=True,
        buffers=buffers,
        loads=("embeddings", "pooler", 0),
        defaults=defaults,
    )


ARCHITECTURES = {
    "nomic_bert": described(NOMIC, tables, hidden_dropout_prob=0.0, hidden_act="silu"),
    "gte": described(GTE, frequencies, hidden_dropout_prob=0.1, hidden_act="gelu", type_vocab_size=1),
}
