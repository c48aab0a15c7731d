"""Losses: transformers' cross-entropy, torchtune's in sections, and fused losses that never hold all logits."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers.chunked_head import chunked_cross_entropy
from vramplan.analytic.layers.liger_losses import liger_cross_entropy
from vramplan.errors import UnsupportedError, setting
from vramplan.units import ceil_div


def token_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same with ``reduction="none"``: (T,) losses."""
    return cross_entropy(logits, labels, of_each=True)


def cross_entropy(logits: Tensor, labels: Tensor, of_each: bool = False) -> Tensor:
    """``F.cross_entropy`` on (T, V) logits: log-softmax saves its output, nll_loss saves the same tensor.

    For half-precision logits log-softmax stays in their dtype (LossNLL.cpp: cross_entropy_loss names it), and nll_loss,
    on autocast's fp32 list, gets a copy.
    """
    tape, like = logits.tape, logits.like

    def log_softmax_backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits (log-softmax backward)")]

    def nll_backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, wide_like, "gradient of the log-probabilities (nll_loss backward)", passes=1)]

    node = tape.node((logits,), log_softmax_backward)
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    out = ops.output(node, tape, logits.shape, logits.dtype, "log-probabilities")
    tape.save(node, out)
    wide = ops.high(out)
    wide_like = wide.like
    loss_node = tape.node((wide,), nll_backward)
    tape.save(loss_node, wide, labels, tape.empty((), "fp32", "total weight"))
    tape.work(0, logits.shape[0] * 4, "fp32")
    if of_each:
        return ops.output(loss_node, tape, logits.shape[:1], wide.dtype, "losses of the tokens")
    return ops.output(loss_node, tape, (), "fp32", "loss")


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """``F.mse_loss`` of one number a sample, which autocast casts to fp32: saves both."""
    tape, wide = logits.tape, ops.to(logits, "fp32", "predictions in fp32")
    like = wide.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the predictions")]

    node = tape.node((wide,), backward)
    tape.save(node, wide, labels)
    return ops.output(node, tape, (), "fp32", "loss")


def sliced_cross_entropy(logits: Tensor) -> Tensor:
    """The loss of transformers before 4.49 on (B, S, V) fp32 logits: copies all but the last of each sample.

    (modeling_llama.py up to 4.45; loss/loss_utils.py: ForCausalLMLoss, 4.46 to 4.48.) The slice of a single sample is
    contiguous and not copied.
    """
    tape, (batch, length, vocabulary), like = logits.tape, logits.shape, logits.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the slice of the logits")]

    shape = (batch, length - 1, vocabulary)
    shifted = Tensor(tape, logits.storage, shape, logits.dtype, tape.node((logits,), backward))
    if batch > 1:
        shifted = ops.copy(shifted, "shifted logits copied")
    labels = tape.empty(shape[:2], "int64", "shifted labels")
    return cross_entropy(shifted.view(batch * (length - 1), vocabulary), labels)


SECTIONS = 8
"""num_output_chunks of CEWithChunkedOutputLoss."""


def sectioned_cross_entropy(
    hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor], beside_head: list[Tensor]
) -> Tensor:
    """Torchtune's loss (0.6.1, modules/loss/ce_chunked_output_loss.py, modules/transformer.py: chunked_output).

    The head runs on sections of the tokens, then cross-entropy in fp32 on each section: all logits exist in their dtype
    and all log-probabilities are saved, but fp32 logits and gradients exist for one section at a time.
    """
    tape, (batch, length, _) = hidden.tape, hidden.shape
    lengths = tuple(_sections(length, ceil_div(length, SECTIONS)))
    parts = ops.split_rows(hidden, lengths)
    del hidden
    logits = [head(ops.copy(part, "section of the hidden state") if batch > 1 else part) for part in parts]
    del parts
    beside_head.clear()
    tape.module = "loss"
    shifted = tape.empty(labels.shape, "int64", "shifted labels")
    total: Tensor | None = None
    for rows, section in zip(lengths, logits, strict=True):
        targets = tape.empty((batch * rows,), "int64", "labels of a section")
        loss = cross_entropy(
            ops.to(section.view(batch * rows, section.shape[-1]), "fp32", "logits of one section in fp32"),
            targets,
        )
        total = loss if total is None else ops.add(total, loss)
    assert total is not None
    del logits, shifted
    return total


def _sections(length: int, size: int) -> list[int]:
    """Lengths of ``torch.chunk``'s pieces: `size`, the last may be shorter."""
    return [min(size, length - start) for start in range(0, length, size)]


def cut_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cut cross-entropy (cut_cross_entropy 25.1.1: cce.py, cce_lse_forward.py, cce_backward.py): no logits in memory.

    Its kernels compute logits in registers, in both passes. Assumes that no label is ignored.

    Raises:
        UnsupportedError: for fp32 hidden states.
    """
    tape, dtype = hidden.tape, hidden.dtype
    (batch, length, width), vocabulary = hidden.shape, weight.shape[0]
    if dtype == "fp32":
        raise UnsupportedError(
            f"{setting('loss', 'cut')} takes bf16 or fp16 hidden states; give {setting('dtype', 'bf16')}, without fp32"
            " norms"
        )
    likes, counted = [x.like for x in (hidden, weight)], (batch * (length - 1),)
    needs, weight_dtype = [x.node is not None for x in (hidden, weight)], weight.dtype
    product = 2 * counted[0] * width * vocabulary
    moved = (hidden.num_bytes + weight.num_bytes) * ceil_div(counted[0], CUT_ROWS)

    def backward(grad: Tensor) -> Grads:
        order = tape.empty((vocabulary,), "int32", "order of the vocabulary")
        first = tape.empty(likes[0].shape, dtype, "gradient of the hidden state")
        second = tape.empty(likes[1].shape, dtype, "gradient of the head's weight") if needs[1] else None
        products = 1 + sum(needs)
        tape.product(products * product, 3 * moved, dtype, products * counted[0] * vocabulary, launches=8)
        del order
        return [first if needs[0] else None, None if second is None else ops.fit(second, likes[1])]

    node = tape.node((hidden, weight), backward)
    mask = tape.empty(counted, "bool", "which labels count")
    places = tape.empty((*counted, 2), "int64", "places of the labels that count")
    places = tape.empty((*counted, 2), "int32", "places of the labels that count")
    valid = tape.empty(counted, "int64", "places of the labels that count")
    del mask, places
    sums = tape.empty(counted, "fp32", "log-sum-exp per token")
    means = tape.empty((vocabulary,), "fp32", "mean logit of each entry")
    dots = tape.empty(counted, "fp32", "loss per token")
    tape.save(node, hidden, weight, sums, labels, valid, means)
    tape.product(product, moved, dtype, counted[0] * vocabulary, launches=8)
    out = ops.output(node, tape, (), "fp32", "loss")
    del dots
    return out


CUT_ROWS = 128
"""Tokens of a block of cut cross-entropy's kernels, which read the weight once for each block."""


FUSED = {"liger": liger_cross_entropy, "cut": cut_cross_entropy, "chunked": chunked_cross_entropy}
"""Losses of the hidden states and the head's weight, without logits."""
