"""Liger's fused loss of pairs: head, log-probabilities and all gradients in forward, one pair at a time.

(liger-kernel 0.8.5, chunked_loss/fused_linear_preference.py, dpo_loss.py.) Each pair runs a function that torch.compile
makes one piece of code of; its buffers are those of Inductor's code for a GPU (torch 2.13): logits of the policy and of
the reference in their dtype, an fp32 gradient of the log-probabilities, and the gradient of the logits in the place of
the reference's, which the code no longer needs.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.kept_gradients import node_of_kept
from vramplan.units import DTYPE_BYTES

PAIRS = 2
"""Pairs that are simulated: the first and the last."""


def pair_loss(hidden: Tensor, weight: Tensor, has_bias: bool, scaled: bool) -> Tensor:
    """The loss of (2 B, S - 1, H) hidden states, chosen answers first; those of the reference have the same shape.

    `scaled`: the loss's gradient is not 1, so that backward multiplies the gradients that forward kept.
    """
    tape, (rows, length, width), vocabulary = hidden.tape, hidden.shape, weight.shape[0]
    pairs, pair = rows // 2, (2, length, width)
    likes = [one.like for one in (hidden, weight)]
    needs = [one.node is not None for one in (hidden, weight)]
    node, gradients = node_of_kept(hidden, weight, scaled)
    if node is None:
        needs = [False, False]
    of_weight = tape.empty(likes[1].shape, likes[1].dtype, "gradient (kept by Liger)") if needs[1] else None
    parts: list[Tensor] = []
    chunk: list[Tensor] = []
    with tape.no_grad():
        for number in range(min(pairs, PAIRS)):
            new = [tape.empty(pair, hidden.dtype, "hidden states of a pair") for _ in range(2)]
            new.append(tape.empty(pair[:2], "int64", "labels of a pair"))
            chunk = new
            del new
            if number == PAIRS - 1 and pairs > PAIRS and needs[0]:
                between = (2 * (pairs - PAIRS), length, width)
                parts.append(tape.empty(between, hidden.dtype, "gradients of pairs between"))
            found, one_weight = _compiled(chunk[0], weight, needs, vocabulary, has_bias)
            del one_weight
            parts += found
            del found
        of_hidden = tape.empty(likes[0].shape, hidden.dtype, "gradient of the hidden states (kept by Liger)")
    products = 2 + sum(needs)
    results = products * rows * length * vocabulary
    moved = products * pairs * (vocabulary * width + 2 * length * (vocabulary + width)) * DTYPE_BYTES[hidden.dtype]
    tape.product(2 * results * width, moved, hidden.dtype, results, products * pairs)
    if node is not None:
        tape.keep(*(one for one in (of_hidden, of_weight) if one is not None))
        gradients.extend([of_hidden if needs[0] else None, of_weight])
    out = ops.output(node, tape, (), "fp32", "loss")
    del of_hidden, of_weight, parts, chunk
    return out


def _compiled(
    x: Tensor, weight: Tensor, needs: list[bool], vocabulary: int, has_bias: bool
) -> tuple[list[Tensor], Tensor | None]:
    """The code of one pair: the gradients of its hidden states, and of the weight.

    Inductor orders it for the least peak. Where the weight's gradient would be that, the logits' means are taken
    first, and the gradient of the logits takes the place of the policy's instead of the reference's.
    """
    tape, (two, length, width) = x.tape, x.shape
    logits = (two * length, vocabulary)
    reference: Tensor | None = tape.empty(logits, x.dtype, "reference's logits of a pair", "logits")
    own = tape.empty(logits, x.dtype, "logits of a pair", "logits")
    sums = [tape.empty((two, length, 1), "fp32", "statistics per token") for _ in range(4)]
    if not needs[0]:
        return [], None
    if needs[1] and 4 * two * length < width * DTYPE_BYTES[weight.dtype]:  # rows of the fp32 gradient, of the weight's
        reference = None
    wide = [tape.empty(logits, "fp32", "gradient of the log-probabilities of a pair", "logits")]
    if has_bias:
        wide.append(tape.empty(logits, x.dtype, "logits of a pair with the bias", "logits"))
    del sums, wide
    found = tape.empty((two, length, width), x.dtype, "gradient of a pair's hidden states")
    one_weight = tape.empty(weight.shape, weight.dtype, "gradient of the head by a pair") if needs[1] else None
    del reference, own
    return [found], one_weight
