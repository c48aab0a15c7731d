"""MPNet: RoBERTa with a learned bias of the scores by distance, which all layers share.

transformers 5.23 (modeling_mpnet.py), whose attention is its own and whose layers are never checkpointed.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.bert import (
    ROBERTA,
    add_and_norm,
    counted_positions,
    shape,
    tables,
    word_loss,
    words,
)
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import ROBERTA_HEADS, pooled
from vramplan.analytic.architectures.t5 import bucketed
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import merged
from vramplan.analytic.layers.attention_kernels import softmax
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """MPNetForMaskedLM: RoBERTa's head."""
    logits = words(forward.net, c, encode(forward, c), ROBERTA)
    return ModelOutput(word_loss(forward, logits), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """MPNetModel; embeddings, mask and bias live until all layers are done."""
    embedded = embed(forward, c)
    mask = forward.padding(embedded)
    bias = bias_of_distances(forward.net, c, embedded)
    return forward.layers(0, embedded, lambda x: layer(forward.net, c, x, bias, mask))


def embed(forward: ForwardPass, c: Config) -> Tensor:
    """Words and positions, which are counted from the ids."""
    net, ids, width, name = forward.net, forward.inputs["input_ids"], c.count("hidden_size"), "embeddings"
    where = counted_positions(net, ids)
    x = net.embedding(f"{name}.word_embeddings", ids, c.count("vocab_size"), width)
    positions = net.embedding(f"{name}.position_embeddings", where, c.count("max_position_embeddings", 512), width)
    x = ops.add(x, positions)
    del positions
    x = net.layer_norm(f"{name}.LayerNorm", x)
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.1))


def bias_of_distances(net: Modules, c: Config, x: Tensor) -> Tensor:
    """compute_position_bias: a number of each head for each bucket of distances, written out for every sample."""
    tape, (batch, length, _), heads = net.tape, x.shape, c.count("num_attention_heads")
    tape.module = name = "encoder.relative_attention_bias"
    apart = tape.empty((length, length), "int64", "distances")
    turned = tape.empty((length, length), "int64", "distances, turned")
    buckets = bucketed(turned, one_way=False)
    weight = net.parameter(f"{name}.weight", c.count("relative_attention_num_buckets", 32), heads)
    values = ops.embedding(buckets, weight, "bias by distance", sorts=True, permuted=True)
    del apart, turned
    return ops.repeat(values, (batch, heads, length, length))


def layer(net: Modules, c: Config, x: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """MPNetLayer: BERT's but for the attention."""
    attended = attention(net, c, x, bias, mask)
    inner = net.linear("intermediate.dense", attended, c.count("intermediate_size"), True)
    inner = activation(c.text("hidden_act", "gelu"))(inner)
    return add_and_norm(net, c, "output", inner, attended)


def attention(net: Modules, c: Config, x: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """MPNetAttention: dropout, the sum, its norm behind the attention."""
    out = self_attention(net, c, x, bias, mask)
    out = ops.dropout(out, c.number("hidden_dropout_prob", 0.1))
    return net.layer_norm("attention.LayerNorm", ops.add(out, x))


def self_attention(net: Modules, c: Config, x: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """MPNetSelfAttention: the bias is added to the scores in place."""
    (batch, length, width), heads = x.shape, c.count("num_attention_heads")
    q, k, v = (
        net.linear(f"attention.attn.{name}", x, width, True).view(batch, length, heads, width // heads)
        for name in "qkv"
    )
    net.tape.module = "attention.attn"
    square, flops = (batch, heads, length, length), 2 * batch * length * length * width
    scores = ops.matmul(merged(q, False), merged(k, False), flops, square, "attention scores")
    scores = ops.scale(scores, "scaled attention scores")
    scores = ops.add_in_place(scores, bias)
    if mask is not None:
        scores = ops.add(scores, mask, "masked attention scores")
    scores = softmax(scores)
    weights = ops.dropout(scores, c.number("attention_probs_dropout_prob", 0.1))
    del scores
    out = ops.matmul(weights, merged(v, False), flops, (batch, length, heads, width // heads), "attention output")
    if batch > 1:
        out = ops.heads_first(out)  # the gradient comes with positions first
    out = ops.copy(out)
    return net.linear("attention.attn.o", out.view(batch, length, width), width, True)


ARCHITECTURES = {
    "mpnet": Architecture(
        masked_lm,
        encode=encode,
        pooler=pooled,
        heads=ROBERTA_HEADS,
        stacks=lambda c: alike(c.count("num_hidden_layers")),
        shape=shape,
        buffers=lambda c: tables(c)[:1],
        attention=("eager",),
        loads=("embeddings", 0, "encoder"),
        checkpoints=False,
    )
}
