"""TRL's fused head: log-probabilities of the labels by tiles of logits, which are never held whole (trl 1.16).

(kernels/chunked_logprob.py: ChunkedLogProbFunction; trainer/utils.py: add_fused_lm_head.)
"""

from __future__ import annotations

from math import prod

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.units import DTYPE_BYTES, ceil_div

TILE = (4096, 32768)
"""Tokens by vocabulary entries of one tile."""
SCORED = "hidden states of the tokens that count"
"""What is saved for backward together with the head's weight."""
EXTRAS = {"entropy": "fp32", "log_sum_sq_probs": "fp32", "mean_logits": "fp32", "is_top1": "bool"}
"""What the kernels compute beside log-probabilities if asked, in this order."""


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """SFTTrainer's loss. Assumes that no label is ignored."""
    tape = hidden.tape
    tape.module = "lm_head"
    valid, *row_locals = rows_that_count(hidden, labels, hidden.shape[1] - 1)
    tokens = valid.shape[0]

    def backward(grad: Tensor) -> Grads:
        return [tape.empty((tokens,), "fp32", "gradient of the log-probabilities")]

    scores = chunked_log_probs(valid, weight, ("entropy", "is_top1"))
    del valid
    spread = [tape.empty((tokens,), kind, "spread per token") for kind in ("fp32", "fp32", "bool")]
    out = ops.output(tape.node((scores[0],), backward), tape, (), "fp32", "loss")
    del spread, scores, row_locals
    return out


def chunked_log_probs(
    valid: Tensor, weight: Tensor, extras: tuple[str, ...] = (), bias: Tensor | None = None
) -> list[Tensor]:
    """Log-probabilities of the labels of (T, H) hidden states, then `extras`.

    No logits are saved: backward recomputes them by tiles, in fp32 accumulators. Autocast does not cast the inputs of
    an autograd.Function, so saved tensors and gradients are in the stored dtype.
    """
    tape = valid.tape
    tokens, (vocabulary, width) = valid.shape[0], weight.shape
    dtype, low = valid.dtype, tape.autocast or valid.dtype
    trained = (valid, weight) if bias is None else (valid, weight, bias)
    likes, weight_dtype = [x.like for x in trained], weight.dtype
    needs = [x.node is not None for x in trained]
    tile_shape = (min(tokens, TILE[0]), TILE[1])
    flops = 2 * tokens * vocabulary * width
    moved = vocabulary * width * DTYPE_BYTES[low] * ceil_div(tokens, TILE[0])

    def tiles(in_backward: bool) -> tuple[Tensor | None, Tensor | None]:
        """Casts of the tiles in the loops' order; backward holds its part of the weight until the next one exists."""
        part: Tensor | None = None
        weight_part: Tensor | None = None
        for rows in pieces(tokens, TILE[0]):
            if dtype != low:
                new = tape.empty((rows, width), low, "chunk of the hidden states cast")
                part = new
                del new
            for entries in pieces(vocabulary, TILE[1]):
                if weight_dtype != low:
                    new = tape.empty((entries, width), low, "chunk of the weight cast")
                    weight_part = new if in_backward else None
                    del new
        return part, weight_part

    def backward(grad: Tensor) -> Grads:
        wide = [
            tape.empty(like.shape, "fp32", "gradient of the head's input or weight in fp32") if need else None
            for like, need in zip(likes, needs, strict=True)
        ]
        tile = tape.empty(tile_shape, low, "tile of logits", "logits")
        casts = tiles(True)
        products = 1 + sum(needs[:2])
        tape.product(products * flops, 3 * moved, low, products * tokens * vocabulary, launches=8)
        grads: Grads = []
        for gradient, like in zip(wide, likes, strict=True):
            grads.append(None if gradient is None else ops.fit(gradient, like))
        del tile, casts, wide  # locals, held until the function returns, in this order
        return grads

    node = tape.node(trained, backward)
    places = tape.empty((tokens, 2), "int64", "places of the labels that count")
    targets = tape.empty((tokens,), "int64", "labels that count")
    del places
    vectors = [tape.empty((tokens,), "fp32", "statistics per token") for _ in range(7)]
    tile = tape.empty(tile_shape, low, "tile of logits", "logits")
    forward_casts = tiles(False)
    tape.product(flops, moved, low, tokens * vocabulary, launches=8)
    log_z = tape.empty((tokens,), "fp32", "log-sum-exp per token")
    found = [ops.output(node, tape, (tokens,), "fp32", "log-probabilities")]
    for name, kind in EXTRAS.items():
        if name in extras:
            found.append(tape.empty((tokens,), kind, name.replace("_", " ")))
    tape.save(node, *trained, targets, log_z, found[1] if "entropy" in extras else log_z)
    del forward_casts, tile, vectors, valid, trained
    return found


def pieces(length: int, size: int) -> list[int]:
    """Lengths of the first two and the last piece of `size`: those between are like the second."""
    count = ceil_div(length, size)
    return [size] * min(count - 1, 2) + [length - (count - 1) * size]


def rows_that_count(x: Tensor, labels: Tensor, scored: int) -> tuple[Tensor, ...]:
    """``x[:, :-1][mask]``: a copy of the `scored` rows with a label of each sample, on the head's GPU.

    Backward puts its gradient into zeros twice. Returned with it are the locals that the forward holds: the mask,
    hidden states and labels on that GPU.
    """
    tape, (batch, length, width), like = x.tape, x.shape, x.like

    def sliced(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of a slice")]

    with tape.on(tape.card_of(x)):
        view = Tensor(tape, x.storage, (batch, length - 1, width), x.dtype, tape.node((x,), sliced))
    view = ops.move(view, tape.card)
    own_labels = ops.move(Tensor(tape, labels.storage, (batch, length - 1), labels.dtype), tape.card)
    inner = view.like

    def picked(grad: Tensor) -> Grads:
        return [ops.new_like(tape, inner, "gradient of the tokens that count")]

    mask = tape.empty((batch, length - 1), "bool", "labels that count")
    node = tape.node((view,), picked)
    tape.save(node, mask)
    places = tape.empty((batch * scored, 2), "int64", "places of the labels that count")
    tape.work(0, 2 * prod(view.shape) * DTYPE_BYTES[x.dtype], x.dtype)
    out = ops.output(node, tape, (batch * scored, width), x.dtype, SCORED)
    del places
    return out, mask, view, own_labels
