"""TRL's Triton kernel of log-probabilities by whole logits (trl 1.14 to 1.16, kernels/logprob_entropy.py).

It makes numbers for each token alone, the entropy among them, and its backward the gradient of the logits.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor


def fused_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S) fp32 log-probabilities of (B, S) labels by (B, S, V) logits."""
    tape, like, shape = logits.tape, logits.like, logits.shape[:-1]

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits by log-probabilities", passes=2)]

    node = tape.node((logits,), backward)
    tape.save(node, logits)
    tape.save(node, labels)
    out = ops.output(node, tape, shape, "fp32", "log-probabilities")
    entropy = tape.empty(shape, "fp32", "entropies")
    for what in ("log-sum-exp", "expected logit"):
        tape.save(node, tape.empty(shape, "fp32", what))
    tape.work(0, logits.num_bytes, logits.dtype)
    del entropy
    return out
