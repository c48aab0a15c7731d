"""Heads that classify samples or tokens (transformers 5.23, modeling_layers.py, modeling_<type>.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.inputs.model_spec import Config

if TYPE_CHECKING:
    from vramplan.analytic.architectures.forward_pass import ForwardPass

Head = Callable[["ForwardPass", Config, Tensor, int], Tensor]
"""Logits from the last hidden states (B, S, width) and the number of labels."""


class Heads(NamedTuple):
    """The heads of an architecture's classes."""

    sequence: Head
    """One row of logits for each sample."""
    token: Head
    """One for each token."""
    fp32_tokens: bool = False
    """Whether the loss of tokens casts the logits to fp32 (loss_utils.py: ForTokenClassification)."""


def first_token(x: Tensor) -> Tensor:
    """``x[:, 0]``: the state of the token that stands for the sample."""
    return ops.rows(x, 1).view(x.shape[0], x.shape[2])


def score_last(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """GenericForSequenceClassification: logits of all tokens, of which the last of each sample is taken."""
    net, ids = forward.net, forward.inputs["input_ids"]
    logits = net.linear("score", x, labels, head=True)
    last = last_tokens(forward, ids)
    rows = net.tape.empty((ids.shape[0],), "int64", "numbers of the samples")
    return ops.gathered(logits, (ids.shape[0], labels), "logits of the last tokens")


def last_tokens(forward: ForwardPass, ids: Tensor) -> Tensor:
    """Places of the rightmost tokens that are no padding."""
    tape = forward.tape
    differs = tape.empty(ids.shape, "bool", "which are no padding")
    counted = tape.empty(ids.shape, "int32", "which are no padding")
    del differs
    places = tape.empty(ids.shape[1:], "int32", "places")
    product = tape.empty(ids.shape, "int32", "places of what is no padding")
    return tape.empty(ids.shape[:1], "int64", "places of the last tokens")


def score_tokens(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """GenericForTokenClassification: dropout, then one layer."""
    chosen = c.get("classifier_dropout")
    chosen = c.get("hidden_dropout") if chosen is None else chosen
    x = ops.dropout(x, 0.1 if chosen is None else float(chosen))
    return forward.net.linear("score", x, labels, True, head=True)


SCORE = Heads(score_last, score_tokens, fp32_tokens=True)
"""Those of nearly all decoders."""


def classifier_dropout(c: Config) -> float:
    """Dropout before the classifier of BERT and RoBERTa."""
    return c.number("classifier_dropout", c.number("hidden_dropout_prob", 0.1))


def pooled(forward: ForwardPass, x: Tensor) -> Tensor:
    """BertPooler: a layer on the first token's state, tanh."""
    return ops.tanh(forward.net.linear("pooler.dense", first_token(x), x.shape[2], True))


def pooled_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """BertForSequenceClassification."""
    first = ops.dropout(pooled(forward, x), classifier_dropout(c))
    return forward.net.linear("classifier", first, labels, True, head=True)


def dense_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """RobertaClassificationHead, which is one module and trains as a whole."""
    dropout = classifier_dropout(c)
    first = ops.dropout(first_token(x), dropout)
    first = ops.tanh(forward.net.linear("classifier.dense", first, x.shape[2], True, head=True))
    return forward.net.linear("classifier.out_proj", ops.dropout(first, dropout), labels, True, head=True)


def token_classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """BertForTokenClassification, RobertaForTokenClassification."""
    return forward.net.linear("classifier", ops.dropout(x, classifier_dropout(c)), labels, True, head=True)


BERT_HEADS = Heads(pooled_classes, token_classes)
ROBERTA_HEADS = Heads(dense_classes, token_classes)
