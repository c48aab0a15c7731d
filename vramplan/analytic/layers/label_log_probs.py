"""Log-probabilities of labels by whole logits (trl 0.15 to 1.13, trainer/utils.py: selective_log_softmax)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor

ENTROPY_ROWS = 128
"""Rows of which entropy_from_logits takes the entropy at a time."""


def label_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S) log-probabilities by (B, S, V) logits, a sample at a time: a logsumexp of fp32, a softmax of half."""
    batch, length, vocabulary = logits.shape
    tape, shape = logits.tape, (batch, length, 1)
    if logits.dtype == "fp32":
        picked = ops.gather(logits, labels, shape)
        sums = [log_sum_exp(row, (1, length, 1)) for row in ops.split_first(logits, (1,) * batch)]
        joined = ops.join_rows(sums, shape)
        del sums
        return ops.subtract(picked, joined, "log-probabilities")
    found: list[Tensor] = []
    for row in ops.split_first(logits, (1,) * batch):
        row_log_probs = log_softmax(row)
        found.append(ops.gather(row_log_probs, labels, (1, length, 1)))
    out = ops.join_rows(found, shape)
    del row, row_log_probs
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    return out


def log_softmax_of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S - 1) log-probabilities by all (B, S, V) fp32 logits at once (LLaMA-Factory 0.9.5: get_batch_logps).

    CUDA's log-softmax copies what is not contiguous: the slice without the last token of each of several rows.
    """
    rows, length, vocabulary = logits.shape
    tape, shape = logits.tape, (rows, length - 1, vocabulary)
    shifted = ops.sliced(logits, shape)
    copied = tape.empty(shape, "fp32", "shifted logits copied", "workspace") if rows > 1 else None
    found = log_softmax(shifted)
    del copied
    return ops.gather(found, labels, (rows, length - 1, 1)).view(rows, length - 1)


def log_softmax_of_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of logits divided by a temperature, a copy that is no longer sliced (torchtune 0.6.1)."""
    rows, length, vocabulary = logits.shape
    shifted = ops.sliced(logits, (rows, length - 1, vocabulary))
    found = log_softmax(ops.scale(shifted, "logits divided by the temperature"))
    return ops.gather(found, labels, (rows, length - 1, 1)).view(rows, length - 1)


def log_sum_exp(x: Tensor, shape: tuple[int, ...], what: str = "logits") -> Tensor:
    """``torch.logsumexp`` over a dimension that `shape` does not have, or has as 1; `what` names what is summed.

    (native/ReduceOps.cpp: logsumexp_out_impl; FunctionsManual.cpp: logsumexp_backward.) Forward makes the exponentials
    of all elements; backward two temporaries before the gradient.
    """
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        differences = ops.new_like(tape, like, f"{what} less their log-sum-exp")
        probabilities = ops.new_like(tape, like, "probabilities")
        gradient = ops.new_like(tape, like, f"gradient of the {what} (log-sum-exp backward)")
        del differences, probabilities
        return [gradient]

    node = tape.node((x,), backward)
    tape.save(node, x)
    out = ops.output(node, tape, shape, x.dtype, "log-sum-exp")
    highest = tape.empty(shape, x.dtype, f"highest {what}", "workspace")
    exponentials = tape.empty(x.shape, x.dtype, "exponentials", "workspace")
    tape.work(0, 4 * x.num_bytes, x.dtype, launches=3)
    del highest, exponentials
    tape.save(node, out)
    return out


def log_softmax(x: Tensor) -> Tensor:
    """``F.log_softmax(x, -1)``: saves its output."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits (log-softmax backward)")]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = ops.output(node, tape, x.shape, x.dtype, "log-probabilities")
    tape.save(node, out)
    return out


def entropies(logits: Tensor, is_contiguous: bool) -> Tensor:
    """``entropy_from_logits(logits.detach())``: logits that are no one block are copied."""
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    rows = batch * length
    flat = None if is_contiguous else tape.empty((rows, vocabulary), logits.dtype, "logits copied")
    log_probs: Tensor | None = None
    for _ in range(min(2, -(-rows // ENTROPY_ROWS))):
        chunk = (min(rows, ENTROPY_ROWS), vocabulary)
        new = tape.empty(chunk, logits.dtype, "log-probabilities of a chunk")
        log_probs = new
        del new
        factors = [tape.empty(chunk, logits.dtype, "entropy of a chunk") for _ in range(2)]
        del factors
    tape.work(0, 4 * batch * length * vocabulary * 4, "fp32", launches=4 * (-(-rows // ENTROPY_ROWS)))
    del log_probs, flat
    return tape.empty((batch, length), logits.dtype, "entropy per token")


def entropies_with_graph(logits: Tensor, is_contiguous: bool) -> list[Tensor]:
    """``entropy_from_logits(logits)`` of ms-swift (trl 0.29.1), and what its graph keeps until the loss exists.

    Log-probabilities and probabilities of all chunks, here one tensor of each; the last chunk counts as a whole one.
    """
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    rows = batch * length
    flat = None if is_contiguous else tape.empty((rows, vocabulary), logits.dtype, "logits copied")
    found = [
        tape.empty((rows, vocabulary), logits.dtype, f"{what} for the entropy")
        for what in ("log-probabilities", "probabilities")
    ]
    product = tape.empty((min(rows, ENTROPY_ROWS), vocabulary), logits.dtype, "entropy of a chunk")
    tape.work(0, 4 * rows * vocabulary * 4, "fp32", launches=4 * (-(-rows // ENTROPY_ROWS)))
    del product, flat
    return [*found, tape.empty((batch, length), logits.dtype, "entropy per token")]
