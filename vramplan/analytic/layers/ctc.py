"""The CTC loss of transformers and torch's CUDA kernels (5.23, loss/loss_ctc.py; torch 2.13, cuda/LossCTC.cu)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor

SMALL = 450
"""Problems up to here are summed up in one kernel (ctc_loss_backward_gpu_template: is_large)."""


def ctc_loss(logits: Tensor, labels: Tensor, zero_infinity: bool, is_mean: bool) -> Tensor:
    """ForCTCLoss of (B, T, V) logits and (B, S) labels: log-probabilities in fp32, cuDNN switched off."""
    tape, (samples, length) = logits.tape, labels.shape
    masks = [tape.empty(labels.shape, "bool", "which labels count") for _ in range(3)]
    mask = masks.pop()
    masks.clear()
    lengths = [tape.empty((samples,), "int64", "lengths of labels")]
    targets = tape.empty((samples * length,), "int64", "labels in one row")
    log_probs = log_softmax(ops.to(logits, "fp32", "logits in fp32"))
    losses = likelihoods(log_probs, targets, length, zero_infinity)
    del log_probs
    if zero_infinity:
        infinite = tape.empty((samples,), "bool", "which losses are infinite")
        losses = ops.where(infinite, losses, losses)
    if is_mean:
        lengths.append(tape.empty((samples,), "int64", "lengths of labels"))
        losses = ops.scale(losses, "losses of a label")
    return ops.total(losses.view(1, samples)).view()


def log_softmax(x: Tensor) -> Tensor:
    """``log_softmax(logits, dim=-1, dtype=torch.float32)``: saves its output; its gradient comes permuted."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        ordered = tape.empty(like.shape, "fp32", "gradient in order", "workspace")
        gradient = ops.new_like(tape, like, "gradient of the logits (log-softmax backward)")
        del ordered
        return [gradient]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = ops.output(node, tape, x.shape, x.dtype, "log-probabilities")
    tape.save(node, out)
    return out


def likelihoods(log_probs: Tensor, targets: Tensor, length: int, zero_infinity: bool) -> Tensor:
    """``torch._ctc_loss``: a table of every frame with every label and the blanks between, alpha; backward makes beta.

    Beside them lie sums over the blanks, and their exponentials, unless the problem is small.
    """
    tape, (samples, frames, classes) = log_probs.tape, log_probs.shape
    like, states = log_probs.like, 2 * length + 1
    is_large = 2 * frames + 24 * samples // 10 + 2 * classes // 10 > SMALL

    def backward(grad: Tensor) -> Grads:
        beta = tape.empty((samples, frames, states), "fp32", "beta", "workspace")
        gradient = ops.new_like(tape, like, "gradient of the log-probabilities")
        if is_large:
            blanks = [tape.empty((samples, frames, length + 1), "fp32", "blanks", "workspace") for _ in range(2)]
            blanks.clear()
        if is_large and zero_infinity:
            before = gradient
            gradient = ops.new_like(tape, like, "gradient of finite losses", passes=2)
            del before
        del beta
        return [gradient]

    node = tape.node((log_probs,), backward)
    tape.work(0, 2 * log_probs.num_bytes, "fp32")
    out = ops.output(node, tape, (samples,), "fp32", "losses of the samples")
    alpha = tape.empty((samples, frames, states), "fp32", "alpha")
    tape.save(node, log_probs, targets, out, alpha)
    return out
