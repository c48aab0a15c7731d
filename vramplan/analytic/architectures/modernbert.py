"""ModernBERT trained to fill in words (transformers 5.23, modeling_modernbert.py)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, first_token
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import attend
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotary_tables, rotate, rotate_half
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


class Kind(NamedTuple):
    """Differences between layers."""

    attention: LayerKind
    normed: bool
    """Whether a norm comes before the attention; the first layer has none."""


def layers(c: Config) -> list[Hashable]:
    """Every third layer attends to everything, the others to a window."""
    every = c.count("global_attn_every_n_layers", 3)
    types = c.get("layer_types")
    slides = [number % every > 0 for number in range(c.count("num_hidden_layers"))]
    if types is not None:
        slides = [name == "sliding_attention" for name in types]
    return [Kind(LayerKind(sliding), number > 0) for number, sliding in enumerate(slides)]


def masked_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """ModernBertForMaskedLM: every position's logits, a cross-entropy in fp32 (loss_utils.py: ForMaskedLMLoss)."""
    net = forward.net
    hidden = encode(forward, c)
    x = before_classes(net, c, hidden)
    tied = c.flag("tie_word_embeddings", True)
    logits = net.head(x, c.count("vocab_size"), tied, bias=c.flag("decoder_bias", True))
    del x
    net.tape.module = "loss"
    return ModelOutput(word_loss(forward, logits), [logits])


def before_classes(net: Modules, c: Config, x: Tensor) -> Tensor:
    """ModernBertPredictionHead."""
    x = net.linear("head.dense", x, x.shape[-1], c.flag("classifier_bias", False))
    x = activation(c.text("classifier_activation", "gelu"))(x)
    return norm(net, c, "head.norm", x)


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """ModernBertForSequenceClassification: the first token's state, or the mean of all."""
    x = first_token(x) if c.text("classifier_pooling", "cls") == "cls" else mean_state(forward, x)
    return token_classes(forward, c, x, labels)


def mean_state(forward: ForwardPass, x: Tensor) -> Tensor:
    """The mean over the tokens that are no padding."""
    tape, (batch, length, width) = forward.tape, x.shape
    given = forward.inputs.get("attention_mask")
    mask = tape.empty((batch, length), "bool", "mask of ones") if given is None else given
    weighed = ops.mul(x, mask.view(batch, length, 1), "states without padding")
    summed = ops.sum_middle(weighed)
    del weighed
    counted = tape.empty((batch, 1), "int64", "tokens counted")
    return ops.mul(summed, counted, "mean state")


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """ModernBertForTokenClassification: the head of words but for its last layer, dropout, the classes."""
    x = ops.dropout(before_classes(forward.net, c, x), c.number("classifier_dropout", 0.0))
    return forward.net.linear("classifier", x, labels, True, head=True)


def word_loss(forward: ForwardPass, logits: Tensor) -> Tensor:
    """Cross-entropy over all rows of the logits in fp32."""
    logits = ops.to(logits, "fp32", "logits in fp32")
    rows = logits.view(logits.num_elements // logits.shape[-1], logits.shape[-1])
    return losses.cross_entropy(rows, forward.inputs["labels"])


def norm(net: Modules, c: Config, name: str, x: Tensor) -> Tensor:
    """LayerNorm, without a bias unless the configuration has one."""
    return net.layer_norm(name, x, c.flag("norm_bias", False))


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """ModernBertModel: masks and rotary tables of both kinds of layers live to its end."""
    net, ids, width = forward.net, forward.inputs["input_ids"], c.count("hidden_size")
    kinds: Sequence[Kind] = forward.stacks[0]  # type: ignore[assignment]
    net.tape.module = "inputs"
    positions = net.tape.empty((1, ids.shape[1]), "int64", "position ids")
    embedded = net.embedding("embeddings.tok_embeddings", ids, c.count("vocab_size"), width)
    held = [ops.dropout(norm(net, c, "embeddings.norm", embedded), c.number("embedding_dropout", 0.0))]
    del embedded
    ctx = context(forward, c, held[0])
    layers = [partial(layer, net, c, ctx=ctx.of(kind.attention), kind=kind) for kind in kinds]
    x = forward.layers(0, held.pop(), layers)
    return norm(net, c, "final_norm", x)


def context(forward: ForwardPass, c: Config, x: Tensor) -> Context:
    """Masks and rotary tables of both kinds of layers."""
    ctx = forward.context(forward.padding(x), c.number("attention_dropout", 0.0))
    ctx.masks[True] = sliding_mask(forward, c, x)
    forward.tape.module = "rotary_emb"
    for sliding in (False, True):
        tables = rotary_tables(forward.tape, 1, x.shape[1], heads_of(c).dim, x.dtype)
        ctx.cos[sliding], ctx.sin[sliding] = tables
        del tables
    return ctx


def sliding_mask(forward: ForwardPass, c: Config, x: Tensor) -> Tensor | None:
    """``create_bidirectional_sliding_window_mask``: one for all samples unless the batch has an attention mask."""
    tape, attention, (batch, length, _) = forward.tape, forward.job.attention, x.shape
    if length < c.count("local_attention", 128) // 2 or attention == "flash":
        return forward.padding(x)
    tape.module = "inputs"
    dtype, parts = (
        x.dtype if attention == "eager" else "bool",
        MaskParts(causal=False, window=True, padded=forward.has_mask),
    )
    return attention_mask(tape, batch, length, dtype, parts)


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: Kind) -> Tensor:
    """Norm, attention, add; norm, gated feed-forward, add."""
    attended, *weights = attention(net, c, norm(net, c, "attn_norm", x) if kind.normed else x, ctx, kind.attention)
    x = ops.add(x, attended, "residual stream")
    return ops.add(x, feed_forward(net, c, norm(net, c, "mlp_norm", x)), "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """One projection for q, k and v; rotary in fp32."""
    (batch, length, width), heads, bias = x.shape, heads_of(c), c.flag("attention_bias", False)
    qkv = net.linear("attn.Wqkv", x, 3 * width, bias)
    parts = ops.split(qkv, width, width, width)
    q, k, v = (part.view(batch, length, heads.query, heads.dim) for part in parts)
    del parts
    net.tape.module = "attn"
    q, k = turned(q, k, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    out = net.linear("attn.Wo", out, width, bias)
    return ops.dropout(out, c.number("attention_dropout", 0.0)), *weights


def turned(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: q and k are cast to fp32 twice each, for the product with cos and with sin."""
    cos, sin, dtype = ctx.cos[kind.sliding], ctx.sin[kind.sliding], q.dtype
    q_turned = in_fp32(q, cos, sin)
    k_turned = in_fp32(k, cos, sin)
    return ops.to(q_turned, dtype, "rotated"), ops.to(k_turned, dtype, "rotated")


def in_fp32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``(x.float() * cos) + (rotate_half(x.float()) * sin)``."""
    if x.dtype == "fp32":
        return rotate(x, cos, sin)
    straight = ops.mul(ops.to(x, "fp32"), cos, "x * cos")
    return ops.add(straight, ops.mul(rotate_half(ops.to(x, "fp32")), sin, "rotated half * sin"), "rotated")


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """ModernBertMLP: both halves of one projection, the first through the activation."""
    width, wide, bias = x.shape[-1], c.count("intermediate_size"), c.flag("mlp_bias", False)
    inner, gate = ops.split(net.linear("mlp.Wi", x, 2 * wide, bias), wide, wide)
    product = ops.mul(activation(c.text("hidden_activation", "gelu"))(inner), gate)
    product = ops.dropout(product, c.number("mlp_dropout", 0.0))
    return net.linear("mlp.Wo", product, width, bias)


def frequencies(c: Config) -> list[Input]:
    """Rotary frequencies of both kinds of layers, and a copy of each."""
    return [Input("rotary frequencies", (heads_of(c).dim // 2,), "fp32")] * 4


ARCHITECTURES = {
    "modernbert": Architecture(
        masked_lm,
        encode=encode,
        heads=Heads(classes, token_classes),
        stacks=one_stack(layers),
        tied=True,
        buffers=frequencies,
        loads=("embeddings", 0),
        refuses=(("sparse_prediction", True),),
    )
}
