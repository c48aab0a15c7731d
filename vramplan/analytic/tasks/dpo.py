"""DPO and its kin, as TRL's DPOTrainer computes them (trainer/dpo_trainer.py: _compute_loss).

Chosen and rejected answers are one batch. Whatever the loss type, the rest of the loss works on numbers per sample.
Since trl 1.15 a fused head makes the log-probabilities; from 1.6 to 1.13 they come from all logits, which before, from
0.29 on, are copied without the last of each sample. From 0.15 to 0.28 labels are rolled instead, and all outputs of a
forward are dropped before the next.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.label_log_probs import label_log_probs
from vramplan.analytic.layers.log_probs_of_loss import entropies_of, log_probs_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import liger_dpo, log_softmax, logits_to_keep, scaled_log_softmax
from vramplan.analytic.tasks.fused_head import answer_labels, fused_forward, of_samples, scored_tokens
from vramplan.analytic.tasks.reference import WITH_MODEL, as_reference
from vramplan.analytic.tasks.whole_logits import cross_entropy_of_first, logits_and_states, logits_of
from vramplan.inputs.job import Job
from vramplan.inputs.task_rules import CONCATENATED

METRICS = ("entropy", "mean_logits", "is_top1")
"""What the fused head computes for the metrics."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``DPOTrainer.compute_loss``."""
    if setting.job.loss == "log_softmax":
        return log_softmax.dpo_loss(net, setting, phase, batch)
    if setting.job.loss == "scaled_log_softmax":
        return scaled_log_softmax.dpo_loss(net, setting, phase, batch)
    if setting.job.loss == "liger":
        return liger_dpo.compute_loss(net, setting, phase, batch)
    if setting.job.loss == "logits_to_keep":
        return logits_to_keep.dpo_loss(net, setting, phase, batch)
    if setting.job.loss in CONCATENATED:
        return _concatenated(net, setting, phase, batch)
    if setting.job.loss != "chunked":
        return _by_logits(net, setting, phase, batch)
    tape, job = net.tape, setting.job
    labels = answer_labels(net, batch)
    outputs = fused_forward(net, setting, phase, batch, labels, METRICS)
    tape.module = "loss"
    per_token = outputs[0]
    sums = ops.total(ops.sliced(per_token, per_token.shape))
    kind = job.reference_source
    if kind in WITH_MODEL:
        with as_reference(net, phase) as own:
            reference = fused_forward(net, setting, own, batch, labels, METRICS if kind != "model" else ())
    tape.module = "loss"
    loss = of_samples(sums)
    counted = tape.empty(per_token.shape, "fp32", "entropy of the answers")
    del counted
    return loss


def _by_logits(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The same by all logits (trl 0.29 to 1.13)."""
    tape, loss_name = net.tape, setting.job.loss
    copies = loss_name == "sliced"
    logits = logits_of(net, setting, phase, batch)
    tape.module = "loss"
    shifted = _shifted(logits, copies)
    rows, length, vocabulary = shifted.shape
    labels = [tape.empty((rows, length), "int64", "shifted labels") for _ in range(2 if copies else 0)]
    index = labels[0] if copies else batch.inputs["input_ids"]
    is_contiguous = copies or rows == 1
    sums = ops.total(log_probs_of(loss_name, shifted, index, is_contiguous).view(rows, length))
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase) as own:
            reference = logits_of(net, setting, own, batch)
        tape.module = "loss"
        reference_shifted = _shifted(reference, copies)
        log_probs = log_probs_of(loss_name, reference_shifted, index, is_contiguous)
    loss = of_samples(sums)
    entropy = entropies_of(loss_name, shifted, copies)
    for _ in range(2):  # chosen_logits[chosen_mask.bool()].mean(-1), then those of rejected answers
        chosen = (rows // 2 * scored_tokens(setting.job), vocabulary)
        places = tape.empty((chosen[0], 2), "int64", "places of the tokens of answers")
        picked = tape.empty(chosen, shifted.dtype, "logits of answers")
        del places, picked
    return loss


def _concatenated(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``get_batch_loss_metrics`` of trl 0.15 to 0.28: the policy's concatenated_forward, then the reference's."""
    sums, nll = _concatenated_forward(net, setting, phase, batch, phase)
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase) as own:
            reference = _concatenated_forward(net, setting, own, batch, phase)
    loss = of_samples(sums)
    return loss if nll is None else ops.add(loss, nll)


def _concatenated_forward(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, after: str
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of all answers, and the cross-entropy of the chosen ones if it is added.

    `after` is the phase of what follows the model's own forward.
    """
    tape, job = net.tape, setting.job
    tape.module = "inputs"
    rows, length = 2 * job.micro_batch_size, job.sequence_length
    prompt, answer = batch.inputs["prompt_input_ids"].shape[1], batch.inputs["chosen_input_ids"].shape[1]
    parts = [tape.empty((rows, size), "int64", "prompts and answers of both") for size in (prompt, answer) * 2]
    names = ["input_ids", "attention_mask", "loss_mask"]
    joined = {name: tape.empty((rows, length), "int64", f"{name} flushed left") for name in names}
    if job.joins_samples:  # padding_free: what the mask selects is one row, told apart by its position ids
        names[1] = "position_ids"
        parts.append(joined["attention_mask"])
        joined = {name: tape.empty((1, rows * length), "int64", f"{name} without padding") for name in names}
    given = batch._replace(inputs={**batch.inputs, **joined})
    if job.loss == "concatenated_states":
        logits, states = logits_and_states(net, setting, phase, given)
    else:
        logits, states = logits_of(net, setting, phase, given), []
    tape.enter(after, None)
    tape.module = "loss"
    shape = logits.shape[:2]
    labels = tape.empty(shape, "int64", "labels rolled by one")
    scored = tape.empty(shape, "bool", "tokens of answers")
    per_token = label_log_probs(logits, labels).view(*shape)
    per_token = ops.copy(per_token, "log-probabilities rolled by one")
    if job.joins_samples:
        per_token = ops.copy(per_token.view(rows, length), "log-probabilities of each answer")
    sums = ops.total(per_token)
    nll = _of_chosen(logits, job, labels) if job.adds_cross_entropy else None
    for _ in range(2):  # logits[:num_examples][loss_mask[:num_examples]].mean(), then those of rejected answers
        chosen = (rows // 2 * scored_tokens(job), logits.shape[-1])
        places = tape.empty((chosen[0], 2), "int64", "places of the tokens of answers")
        picked = tape.empty(chosen, logits.dtype, "logits of answers")
        del places, picked
    del parts, joined, given, states, logits, labels, scored, per_token
    return sums, nll


def _of_chosen(logits: Tensor, job: Job, labels: Tensor) -> Tensor:
    """``nll_loss``: of the first half of the rows, which is all of them where samples share one (trl 0.15 to 0.28).

    From 0.19 on without the last token of each (dpo_trainer.py: ``logits[:num_examples, :-1]``).
    """
    rows, length = min(job.micro_batch_size, logits.shape[0]), logits.shape[1] - (job.loss == "concatenated_states")
    if rows > 1 and length < logits.shape[1]:
        labels = logits.tape.empty((rows, length), "int64", "labels of chosen answers")
    return cross_entropy_of_first(logits, rows, length, labels)


def _shifted(logits: Tensor, copies: bool) -> Tensor:
    """``logits[..., :-1, :]``, which trl before 1.6 makes contiguous."""
    rows, length, vocabulary = logits.shape
    view = ops.sliced(logits, (rows, length - 1, vocabulary))
    return ops.copy(view, "shifted logits copied") if copies else view
