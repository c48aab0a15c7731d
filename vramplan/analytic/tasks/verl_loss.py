"""verl's loss of clipped ratios (0.9.1, trainer/ppo/core_algos.py: compute_policy_loss_vanilla)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor


def policy_loss(log_probs: Tensor, entropies: Tensor | None) -> Tensor:
    """The loss by log-probabilities of tokens, less their entropies if those are part of it."""
    tape, rows = log_probs.tape, log_probs.num_elements
    advantages = tape.empty((rows,), "fp32", "advantages")
    before = tape.empty((rows,), "fp32", "log-probabilities of the step before")
    ratio = ops.exp(ops.clamp(ops.subtract(log_probs, before)))
    clipped = ops.clamp(ratio)
    first, second = ops.neg(ops.mul(ratio, advantages)), ops.neg(ops.mul(clipped, advantages))
    per_token = ops.least(first, second)
    del ratio, clipped, first, second, before, advantages, log_probs
    loss = ops.scale(ops.total(per_token))
    if entropies is not None:
        loss = ops.subtract(loss, ops.scale(ops.total(entropies.view(rows))))
    return loss
