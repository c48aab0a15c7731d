"""Divergences of two distributions of the next token, by whole logits (trl 1.16: GKDTrainer.generalized_jsd_loss)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.label_log_probs import log_softmax, log_sum_exp


def divergence(student: Tensor, teacher: Tensor, kind: str, scored: int) -> Tensor:
    """The mean divergence of (B, S, V) logits at the `scored` tokens of each row; `kind` is the job's.

    Both are divided by a temperature of 1 into copies, which live on beside their log-softmax, as all that follows.
    """
    tape, (rows, length, vocabulary) = student.tape, student.shape
    student, teacher = (
        ops.scale(one, f"{whose} logits divided by the temperature")
        for one, whose in ((student, "student's"), (teacher, "teacher's"))
    )
    own, other = log_softmax(student), log_softmax(teacher)
    found = DIVERGENCES[kind](own, other)
    mask = tape.empty((rows, length), "bool", "tokens that count")
    positions = tape.empty((rows * scored, 2), "int64", "their positions")
    chosen = ops.gathered(found, (rows * scored, vocabulary), "divergence of each word at tokens that count")
    del positions
    loss = ops.total(chosen.view(rows * scored * vocabulary))
    out = ops.scale(loss, "loss")
    del mask, own, other, found, chosen, loss, student, teacher
    return out


def kl_div(of: Tensor, target: Tensor) -> Tensor:
    """``F.kl_div(of, target, log_target=True)``: ``target.exp() * (target - of)`` (native/Loss.cpp)."""
    chances = ops.exp(target)
    difference = ops.subtract(target, of, "difference of log-probabilities")
    return ops.mul(chances, difference, "divergence of each word")


def mixed(stacked: Tensor) -> Tensor:
    """``torch.logsumexp(stacked, dim=0)``: the log-probabilities of the mixture."""
    return log_sum_exp(stacked, stacked.shape[1:], "log-probabilities")


def jensen_shannon(own: Tensor, other: Tensor) -> Tensor:
    """Both against their mixture, whose log-probabilities are a logsumexp of the two stacked."""
    tape = own.tape
    shares = [tape.empty((), own.dtype, "beta") for _ in range(2)]
    parts = [ops.shift(own, "student's share of the mixture"), ops.shift(other, "teacher's share of the mixture")]
    stacked = ops.stack(parts)
    parts.clear()
    mixture = mixed(stacked)
    del stacked
    of_teacher, of_student = kl_div(mixture, other), kl_div(mixture, own)
    weighted = ops.scale(of_teacher, "divergence of the teacher, weighted")
    weighted = ops.add(weighted, ops.scale(of_student, "divergence of the student, weighted"), "weighted divergences")
    del of_teacher, of_student, mixture, shares
    return weighted


DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "jsd": jensen_shannon,
    "forward_kl": kl_div,
    "reverse_kl": lambda own, other: kl_div(other, own),
}
