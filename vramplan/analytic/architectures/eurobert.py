"""EuroBERT: Llama's layers, every word attending to every other (transformers 5.23, modeling_eurobert.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import embed_tokens
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, first_token
from vramplan.analytic.architectures.llama import llama
from vramplan.analytic.architectures.modernbert import mean_state, word_loss
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import LayerKind, heads_of
from vramplan.analytic.layers.rope import rotary_tables
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

KIND = LayerKind()


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """EuroBertForMaskedLM: every position's logits from the states themselves, a cross-entropy in fp32."""
    net, hidden = forward.net, encode(forward, c)
    logits = net.head(hidden, c.count("vocab_size"), c.flag("tie_word_embeddings", False), c.flag("mlp_bias", False))
    net.tape.module = "loss"
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """EuroBertModel: the embeddings, the mask and the rotary tables live to its end."""
    net = forward.net
    embedded = embed_tokens(net, c, forward.inputs["input_ids"])
    net.tape.module = "inputs"
    positions = net.tape.empty((1, embedded.shape[1]), "int64", "position ids")
    ctx = forward.context(forward.padding(embedded), c.number("attention_dropout", 0.0))
    net.tape.module = "rotary_emb"
    ctx.cos[False], ctx.sin[False] = rotary_tables(net.tape, 1, embedded.shape[1], heads_of(c).dim, embedded.dtype)
    x = forward.layers(0, embedded, lambda x: llama(net, c, x, ctx, KIND))
    x = net.rms_norm("norm", x)
    del positions
    return x


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """EuroBertForSequenceClassification: the mean of all tokens' logits, or logits of one state."""
    pooling = c.text("classifier_pooling", "late")
    if pooling != "late":
        return scored(forward, first_token(x) if pooling == "bos" else mean_state(forward, x), labels)
    return mean_state(forward, scored(forward, x, labels))


def scored(forward: ForwardPass, x: Tensor, labels: int) -> Tensor:
    """A layer, GELU, the classes."""
    x = ops.gelu(forward.net.linear("dense", x, x.shape[-1], True))
    return forward.net.linear("classifier", x, labels, True, head=True)


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """EuroBertForTokenClassification."""
    return forward.net.linear("classifier", x, labels, True, head=True)


def frequencies(c: Config) -> list[Input]:
    """Rotary frequencies, and a copy of them."""
    return [Input("rotary frequencies", (heads_of(c).dim // 2,), "fp32")] * 2


ARCHITECTURES = {
    "eurobert": Architecture(masked_lm, encode=encode, heads=Heads(classes, token_classes), buffers=frequencies),
}
