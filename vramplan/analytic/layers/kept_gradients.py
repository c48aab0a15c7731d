"""The node of a loss that computes its gradients in forward, as Liger's fused losses do."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor


def node_of_kept(hidden: Tensor, weight: Tensor, scaled: bool) -> tuple[Node | None, list[Tensor | None]]:
    """The node, None if nothing trains, and the list that forward puts the gradients in.

    `scaled`: the loss's gradient is not 1, so that backward multiplies the gradients that forward kept.
    """
    tape = hidden.tape
    gradients: list[Tensor | None] = []

    def backward(grad: Tensor) -> Grads:
        kept = list(gradients)
        gradients.clear()
        if not scaled:
            return kept
        return [None if one is None else ops.new_like(tape, one.like, "gradient times the loss's") for one in kept]

    return tape.node((hidden, weight), backward), gradients
