"""Nomic BERT: BERT with rotary positions and a gated feed-forward (transformers 5.23, modeling_nomic_bert.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.bert import Variant, word_loss, words
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import BERT_HEADS
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attention
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary_tables
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

HEAD = Variant(("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"), None, counts=False)
KIND = LayerKind()


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """NomicBertForMaskedLM: BERT's head."""
    logits = words(forward.net, c, encode(forward, c), HEAD)
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """NomicBertModel; embeddings, mask and rotary tables live to its end."""
    net = forward.net
    net.tape.module = "inputs"
    positions = net.tape.empty((1, forward.inputs["input_ids"].shape[1]), "int64", "position ids")
    embedded = embed(forward, c)
    ctx = forward.context(forward.padding(embedded), c.number("attention_probs_dropout_prob", 0.0))
    net.tape.module = "rotary_emb"
    ctx.cos[False], ctx.sin[False] = rotary_tables(net.tape, 1, embedded.shape[1], heads_of(c).dim, embedded.dtype)
    x = forward.layers(0, embedded, lambda x: layer(net, c, x, ctx))
    del positions
    return x


def embed(forward: ForwardPass, c: Config) -> Tensor:
    """Words and kinds of sentence, all of one kind; a norm."""
    net, ids, width, name = forward.net, forward.inputs["input_ids"], c.count("hidden_size"), "embeddings"
    words = net.embedding(f"{name}.word_embeddings", ids, c.count("vocab_size"), width)
    kinds = net.tape.empty(ids.shape, "int64", "kinds of sentence")
    x = ops.add(words, net.embedding(f"{name}.token_type_embeddings", kinds, c.count("type_vocab_size", 2), width))
    x = net.layer_norm(f"{name}.LayerNorm", x)
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.0))


def layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Attention, add, norm; gated feed-forward, add, norm."""
    dropout, residual = c.number("hidden_dropout_prob", 0.0), x
    out, *weights = attention(net, c, x, ctx, KIND, scores=Softcap(in_fp32=False, casts=False))
    x = net.layer_norm("post_attention_layernorm", ops.add(residual, ops.dropout(out, dropout)))
    residual = x
    x = ops.add(residual, ops.dropout(gated_mlp(net, c, x, c.text("hidden_act", "silu")), dropout))
    return net.layer_norm("post_mlp_layernorm", x)


def tables(c: Config) -> list[Input]:
    """Positions, kinds of sentence, rotary frequencies and a copy of them."""
    rows = (1, c.count("max_position_embeddings", 2048))
    frequencies = Input("rotary frequencies", (heads_of(c).dim // 2,), "fp32")
    return [Input("position_ids", rows), Input("token_type_ids", rows), frequencies, frequencies]


ARCHITECTURES = {
    "nomic_bert": Architecture(
        masked_lm,
        encode=encode,
        heads=BERT_HEADS,
        tied=True,
        buffers=tables,
        loads=("embeddings", "pooler", 0),
        defaults={"hidden_dropout_prob": 0.0, "hidden_act": "silu"},
    )
}
