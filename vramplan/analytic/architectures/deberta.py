"""DeBERTa-v3: words and their relative positions attend to each other (transformers 5.23, modeling_deberta_v2.py).

Scores are (B * heads, S, S); positions are P = 2 * buckets relative ones, whose scores (B * heads, S, P) are gathered.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.bert import add_and_norm, shape, word_loss, words
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, first_token
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers.attention_kernels import softmax
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """DebertaV2ForMaskedLM: BERT's head."""
    hidden = last_state(forward, c)
    logits = words(forward.net, c, hidden)
    return ModelOutput(word_loss(forward, logits), [logits])


def last_state(forward: ForwardPass, c: Config) -> Tensor:
    """The last layer's states, of a variant that is described."""
    check(c)
    return states_of(forward, c)


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """DebertaV2ForSequenceClassification: ContextPooler on the first token's state, dropout, the classes."""
    first = ops.dropout(first_token(x), c.number("pooler_dropout", 0.0))
    first = forward.net.linear("pooler.dense", first, x.shape[2], True)
    first = activation(c.text("pooler_hidden_act", "gelu"))(first)
    first = ops.dropout(first, c.number("cls_dropout", c.number("hidden_dropout_prob", 0.1)))
    return forward.net.linear("classifier", first, labels, True, head=True)


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """DebertaV2ForTokenClassification."""
    x = ops.dropout(x, c.number("hidden_dropout_prob", 0.1))
    return forward.net.linear("classifier", x, labels, True, head=True)


def states_of(forward: ForwardPass, c: Config) -> Tensor:
    """DebertaV2Model: the states of all layers live until the last is there."""
    mask = forward.inputs["attention_mask"]
    forward.tape.module = "inputs"
    kinds = forward.tape.empty(mask.shape, "int64", "kinds of sentence")
    embedded = embed(forward, c, mask, kinds)
    states = [embedded]
    return encode(forward, c, embedded, mask, states)


def check(c: Config) -> None:
    """Refuse variants that are not described.

    Raises:
        UnsupportedError: naming the keys.
    """
    types, traced = c.get("pos_att_type") or (), f"{setting('by', 'trace')} runs it"
    known = set(types.split("|") if isinstance(types, str) else types) == {"c2p", "p2c"}
    if not (known and c.flag("relative_attention", False) and c.flag("share_att_key", False)):
        raise UnsupportedError(f"deberta-v2 without shared keys for c2p and p2c is not supported; {traced}")
    if c.get("conv_kernel_size") or c.get("embedding_size", c.count("hidden_size")) != c.count("hidden_size"):
        raise UnsupportedError(f"deberta-v2 with a convolution or narrow embedding is not supported; {traced}")


def positions(c: Config) -> int:
    """Relative positions that have an embedding: buckets, or distances, before and behind."""
    return 2 * max(c.get("position_buckets", -1), 0) or 2 * distances(c)


def distances(c: Config) -> int:
    """Longest distance with an embedding of its own."""
    distance = c.get("max_relative_positions", -1)
    return int(distance) if distance > 0 else c.count("max_position_embeddings", 512)


def embed(forward: ForwardPass, c: Config, mask: Tensor, kinds: Tensor) -> Tensor:
    """DebertaV2Embeddings: words, positions or zeros in their place, a norm, padding set to zero."""
    net, ids, width, name = forward.net, forward.inputs["input_ids"], c.count("hidden_size"), "embeddings"
    x = words = net.embedding(f"{name}.word_embeddings", ids, c.count("vocab_size"), width)
    if c.flag("position_biased_input", True):
        where = net.resident((1, ids.shape[1]), "int64")
        positions = net.embedding(f"{name}.position_embeddings", where, c.count("max_position_embeddings", 512), width)
        x = ops.add(x, positions)
    else:
        positions = net.tape.empty(words.shape, words.dtype, "zeros for positions")
    if c.get("type_vocab_size", 0):
        x = ops.add(x, net.embedding(f"{name}.token_type_embeddings", kinds, c.count("type_vocab_size"), width))
    x = net.layer_norm(f"{name}.LayerNorm", x)
    x = ops.mul(x, ops.to(mask, x.dtype).view(*ids.shape, 1), "words without padding")
    return ops.dropout(x, c.number("hidden_dropout_prob", 0.1))


def encode(forward: ForwardPass, c: Config, x: Tensor, mask: Tensor, states: list[Tensor]) -> Tensor:
    """DebertaV2Encoder: one mask, one table of relative positions, one norm of their embeddings for all layers."""
    net, tape, (batch, length, width) = forward.net, forward.tape, x.shape
    tape.module = "encoder"
    pairs = tape.empty((batch, 1, length, length), mask.dtype, "mask of pairs")
    apart = bucketed(tape, (1, length, length)) if c.get("position_buckets", -1) > 0 else None
    apart = apart or tape.empty((1, length, length), "int64", "relative positions")
    table: Tensor = net.parameter("encoder.rel_embeddings.weight", positions(c), width)
    if "layer_norm" in c.text("norm_rel_ebd", "none"):
        table = net.layer_norm("encoder.LayerNorm", table)
    return forward.layers(0, x, lambda x: layer(net, c, x, pairs, apart, table), states)


def bucketed(tape: Tape, square: tuple[int, ...]) -> Tensor:
    """make_log_bucket_position, operation by operation: near distances have a bucket each, far ones share them."""

    def made(dtype: str, what: str) -> Tensor:
        return tape.empty(square, dtype, what)

    apart, sign = made("int64", "relative positions"), made("int64", "signs")
    near = [made("bool", what) for what in ("not far ahead", "not far behind", "near")]
    del near[:2]
    lengths = made("int64", "lengths")
    lengths = made("int64", "lengths of the far ones")
    del near
    far = made("fp32", "share of the near ones")
    for what in ("logarithm", "share of the far ones", "steps", "whole steps", "far buckets"):
        far = made("fp32", what)
    which = [made("bool", "which are near"), made("fp32", "positions in fp32"), made("fp32", "far buckets, signed")]
    chosen = made("fp32", "near or far bucket")
    del which, sign, lengths, far, apart
    buckets = made("int64", "buckets of relative positions")
    del chosen
    return buckets


def layer(net: Modules, c: Config, x: Tensor, pairs: Tensor, apart: Tensor, table: Tensor) -> Tensor:
    """DebertaV2Layer: BERT's but for the attention."""
    mixed = attention(net, c, x, pairs, apart, table)
    attended = add_and_norm(net, c, "attention.output", mixed, x)
    del mixed
    inner = net.linear("intermediate.dense", attended, c.count("intermediate_size"), True)
    inner = activation(c.text("hidden_act", "gelu"))(inner)
    return add_and_norm(net, c, "output", inner, attended)


def attention(net: Modules, c: Config, x: Tensor, pairs: Tensor, apart: Tensor, table: Tensor) -> Tensor:
    """DisentangledSelfAttention: word to word, word to position, position to word."""
    batch, length, width = x.shape
    heads = c.count("num_attention_heads")
    square, flops = (batch, heads, length, length), 2 * batch * length * length * width
    q, k, v = (projected(net, name, x, heads) for name in ("query", "key", "value"))
    net.tape.module = "attention.self"
    scores = ops.matmul(q, ops.scale(k, "scaled key"), flops, square, "attention scores")
    table = ops.dropout(table, c.number("hidden_dropout_prob", 0.1))
    by_position = position_scores(net, q, k, apart, table, heads)
    scores = ops.add(scores, by_position, "attention scores with positions")
    visible = net.tape.empty(pairs.shape, "bool", "pairs that see each other")
    hidden = net.tape.empty(pairs.shape, "bool", "pairs that do not")
    scores = ops.masked(scores, hidden)
    del hidden
    weights = softmax(scores)
    weights = ops.dropout(weights, c.number("attention_probs_dropout_prob", 0.1))
    out = ops.matmul(weights, v, flops, (batch, length, heads, width // heads), "attention output")
    out = ops.copy(ops.heads_first(out), "heads beside each other")
    del visible
    return out.view(batch, length, width)


def projected(net: Modules, name: str, x: Tensor, heads: int) -> Tensor:
    """transpose_for_scores of a projection: head by head in memory."""
    batch, length, width = x.shape
    out = net.linear(f"attention.self.{name}_proj", x, width, True).view(batch, length, heads, width // heads)
    return ops.copy(ops.heads_first(out), "heads apart")


def position_scores(net: Modules, q: Tensor, k: Tensor, apart: Tensor, table: Tensor, heads: int) -> Tensor:
    """disentangled_attention_bias: scores of every position, of which those that stand there are gathered.

    Queries and keys of positions are made by the words' own projections, once for each sample.
    """
    tape, (batch, length, _, dim) = net.tape, q.shape
    count, width = table.shape
    shape, flops = (batch, heads, length, count), 2 * batch * length * count * width
    rows = table.view(1, count, width)
    asks = ops.repeat(projected(net, "query", rows, heads), (batch, count, heads, dim))
    answers = ops.repeat(projected(net, "key", rows, heads), (batch, count, heads, dim))
    tape.module = "attention.self"
    to_position = ops.matmul(q, answers, flops, shape, "word to position")
    places = clamped(apart)
    to_position = ops.gather(to_position, places, (batch, heads, length, length))
    score = ops.shift(ops.scale(to_position))
    back = tape.empty(apart.shape, "int64", "relative positions, turned")
    index = clamped(back)
    del back
    to_word = ops.matmul(k, asks, flops, shape, "position to word")
    to_word = ops.gather(to_word, index, (batch, heads, length, length))
    score = ops.add_in_place(score, ops.scale(to_word))
    del places  # a local to the end
    return score


def clamped(positions: Tensor) -> Tensor:
    """``torch.clamp(positions + span, 0, last)``."""
    shifted = positions.tape.empty(positions.shape, "int64", "shifted positions")
    made = positions.tape.empty(positions.shape, "int64", "positions to gather")
    del shifted
    return made


def tables(c: Config) -> list[Input]:
    """Positions."""
    return [Input("position_ids", (1, c.count("max_position_embeddings", 512)))]


ARCHITECTURES = {
    "deberta-v2": Architecture(
        masked_lm,
        encode=last_state,
        heads=Heads(classes, token_classes),
        stacks=lambda c: alike(c.count("num_hidden_layers")),
        shape=shape,
        buffers=tables,
        loads=("embeddings", 0, "encoder"),
        attention=("eager",),
        refuses=(("legacy", False),),
    )
}
