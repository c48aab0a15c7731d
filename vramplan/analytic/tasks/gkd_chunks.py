"""Distillation as ms-swift's GKDTrainer computes it: logits of completions, compared 512 tokens at a time.

(4.6, rlhf_trainers/gkd_trainer.py: compute_loss; gkd_loss.py: gkd_loss, jsd_loss.) Logits of both models begin with the
first completion's first token (``logits_to_keep``), or are those of all completions of a row that a mask selects
(``padding_free``); those of the tokens that count are copies, divided by a temperature
into further copies, which live on beside what each chunk saves for backward.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.batch import Batch, in_one_row
from vramplan.analytic.layers.divergence import kl_div, mixed
from vramplan.analytic.layers.label_log_probs import log_softmax
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.reference import without_gradients
from vramplan.analytic.tasks.teacher_outputs import teacher_outputs
from vramplan.analytic.tasks.whole_logits import logits_and_loss, logits_of

CHUNK = 512
"""Tokens that are compared at a time."""
SCALED = "logits divided by the temperature"


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``GKDTrainer.compute_loss``: the outputs of both models live until the loss is returned."""
    tape, job, scored = net.tape, setting.job, scored_tokens(setting.job)
    rows = batch.inputs["input_ids"].shape[0]
    if job.joins_samples:
        scored, rows = scored * rows, 1
        batch = in_one_row(batch, setting)
    cross_entropy: Tensor | None = None
    if job.adds_cross_entropy:  # sft_alpha
        student, cross_entropy = logits_and_loss(net, setting, phase, batch, scored + 1)
    else:
        student = logits_of(net, setting, phase, batch, scored + 1)
    if job.teacher is None:
        return _from_highest(setting, student, cross_entropy, rows * scored)
    with without_gradients(net, phase, name="teacher") as taught:
        teacher, cache = teacher_outputs(net, setting, taught, batch, scored + 1)
    tape.module = "loss"
    kept = student.shape[1]
    labels = [tape.empty((rows, kept), "int64", "labels rolled by one") for _ in range(2)]
    masks = [tape.empty((rows, kept), "bool", "tokens that count") for _ in range(2)]
    active = [_chosen(one, (rows * scored, one.shape[-1])) for one in (student, teacher)]
    scaled = [ops.scale(_padded(active[0], teacher.shape[-1]), SCALED), ops.scale(active[1], SCALED)]
    total = _in_chunks(scaled[0], scaled[1], job.divergence)
    loss = ops.scale(total, "loss")
    if cross_entropy is not None:
        loss = ops.add(loss, ops.scale(cross_entropy))
    del masks, active, scaled, total, labels, teacher, cache, cross_entropy
    return loss


def _from_highest(setting: StepSpec, student: Tensor, cross_entropy: Tensor | None, scored: int) -> Tensor:
    """The loss by the highest log-probabilities of each token, which a teacher on other GPUs gave."""
    tape, job, (rows, kept, _) = student.tape, setting.job, student.shape
    tape.module = "loss"
    highest = (scored, job.teacher_logits or 1)
    labels = [tape.empty((rows, length), "int64", "labels rolled by one") for length in (kept, job.sequence_length)]
    masks = [tape.empty((rows, length), "bool", "tokens that count") for length in (kept, job.sequence_length)]
    active = _chosen(student, (scored, student.shape[-1]))
    teacher = tape.empty(highest, "fp32", "the teacher's log-probabilities of the tokens that count")
    indices = tape.empty(highest, "int64", "words that these are of")
    own = ops.scale(ops.gather(active, indices, highest), SCALED)
    total = _in_chunks(own, ops.scale(teacher, SCALED), job.divergence)
    loss = ops.scale(total, "loss")
    if cross_entropy is not None:
        loss = ops.add(loss, ops.scale(cross_entropy))
    del masks, active, teacher, indices, own, total, labels
    return loss


def _chosen(logits: Tensor, shape: tuple[int, int]) -> Tensor:
    """``logits[mask]``."""
    positions = logits.tape.empty((shape[0], 2), "int64", "positions of the tokens that count")
    return ops.gathered(logits, shape, "logits of the tokens that count")


def _padded(logits: Tensor, width: int) -> Tensor:
    """The student's logits with those that only the teacher has, which are the teacher's (gkd_loss.py: _align_vocab).

    ``F.pad``, whose backward copies what was there, then a slice that is set, whose backward copies the whole gradient
    (torch 2.13, autograd/functions/tensor.cpp: CopySlices).
    """
    tape, like = logits.tape, logits.like
    if logits.shape[-1] == width:
        return logits

    def without_padding(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient without the padding")]

    def whole(grad: Tensor) -> Grads:
        return [ops.new_like(tape, grad.like, "gradient of the padded logits, copied")]

    padded = ops.output(
        tape.node((logits,), without_padding), tape, (logits.shape[0], width), logits.dtype, "padded logits"
    )
    return Tensor(tape, padded.storage, padded.shape, padded.dtype, tape.node((padded,), whole))


def _in_chunks(student: Tensor, teacher: Tensor, kind: str) -> Tensor:
    """``jsd_loss``: the sum over all (N, V) logits; names of a chunk hold its tensors until the next replaces them."""
    tape, (count, vocabulary) = student.tape, student.shape
    total = tape.empty((), student.dtype, "sum of the divergences")
    for first in range(0, count, CHUNK):
        shape = (min(CHUNK, count - first), vocabulary)
        own = log_softmax(ops.sliced(student, shape))
        other = log_softmax(ops.sliced(teacher, shape))
        if kind == "forward_kl":
            found = _kl_div(own, other)
        elif kind == "reverse_kl":
            found = _kl_div(other, own)
        else:
            mixture = mixed(ops.stack([ops.shift(own), ops.shift(other)]))
            found = ops.add(ops.scale(_kl_div(mixture, other)), ops.scale(_kl_div(mixture, own)))
        total = ops.add(total, ops.total(found.view(shape[0])).view())
    return total


def _kl_div(of: Tensor, target: Tensor) -> Tensor:
    """``default_kl_div``: a number for each token."""
    return ops.total(kl_div(of, target))
