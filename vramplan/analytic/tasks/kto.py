"""KTO, as TRL's KTOTrainer computes it (trl 1.16, trainer/kto_trainer.py: _compute_loss).

The KL term takes two more forwards, on answers of other prompts: by the model, without gradients, and by the reference.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, of_other_prompts
from vramplan.analytic.layers.log_probs_of_loss import entropies_of, log_probs_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import log_softmax, logits_to_keep
from vramplan.analytic.tasks.fused_head import answer_labels, fused_forward, of_samples, scored_tokens
from vramplan.analytic.tasks.reference import WITH_MODEL, as_reference, without_gradients
from vramplan.analytic.tasks.whole_logits import logits_of
from vramplan.inputs.job_values import Loss

METRICS = ("entropy", "mean_logits")
"""What the fused head computes for the metrics."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``KTOTrainer.compute_loss``."""
    if setting.job.loss == "log_softmax":
        return log_softmax.kto_loss(net, setting, phase, batch)
    if setting.job.loss == "logits_to_keep":
        return logits_to_keep.kto_loss(net, setting, phase, batch)
    if setting.job.loss in ("standard", "axolotl_log_probs"):
        return _by_logits(net, setting, phase, batch)
    if setting.job.loss == "copied_logits":
        return _by_copied_logits(net, setting, phase, batch)
    tape, kind = net.tape, setting.job.reference_source
    kl_batch = of_other_prompts(batch)
    with without_gradients(net, phase, "policy.") as own:
        _summed(net, setting, own, kl_batch, METRICS)
    labels = answer_labels(net, batch)
    outputs = fused_forward(net, setting, phase, batch, labels, METRICS)
    tape.module = "loss"
    per_token = outputs[0]
    sums = ops.total(ops.sliced(per_token, per_token.shape))
    if kind in WITH_MODEL:
        extras = METRICS if kind != "model" else ()
        with as_reference(net, phase, "kl.") as own:
            _summed(net, setting, own, kl_batch, extras)
        with as_reference(net, phase) as own:
            reference = fused_forward(net, setting, own, batch, labels, extras)
    tape.module = "loss"
    loss = of_samples(sums)
    counted = tape.empty(per_token.shape, "fp32", "entropy of the answers")
    del counted
    return loss


def _by_logits(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The same by all logits (trl 1.9), of which the reference's live until the loss is returned."""
    tape, index, loss_name = net.tape, batch.inputs["input_ids"], setting.job.loss
    kl_batch = of_other_prompts(batch)
    with without_gradients(net, phase, "policy.") as own:
        scored = [logits_of(net, setting, own, kl_batch)]
    _log_probs(loss_name, scored.pop(), index)
    logits = logits_of(net, setting, phase, batch)
    sums = ops.total(_log_probs(loss_name, logits, index))
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase, "kl.") as own:
            scored = [logits_of(net, setting, own, kl_batch)]
        _log_probs(loss_name, scored.pop(), index)
        with as_reference(net, phase) as own:
            reference = logits_of(net, setting, own, batch)
        _log_probs(loss_name, reference, index)
    loss = of_samples(sums)
    rows, length, vocabulary = logits.shape
    entropy = entropies_of(loss_name, ops.sliced(logits, (rows, length - 1, vocabulary)), False)
    # shift_logits.index_select(0, chosen_idx), then its tokens: most if all answers of the batch are of one kind
    chosen = tape.empty((rows, length - 1, vocabulary), logits.dtype, "logits of one kind of answers")
    picked = (rows * scored_tokens(setting.job), vocabulary)
    places = tape.empty((picked[0], 2), "int64", "places of the tokens of answers")
    taken = tape.empty(picked, logits.dtype, "logits of tokens of answers")
    del places, taken, chosen, entropy
    return loss


def _by_copied_logits(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The same as TRL 0.18 to 1.5 (kto_trainer.py: forward, get_batch_loss_metrics).

    Each forward copies the logits of desirable and of undesirable answers, together all of them. The policy's copies
    live until the loss is returned.
    """
    kl_batch = of_other_prompts(batch)
    with without_gradients(net, phase, "policy.") as own:
        scored = [logits_of(net, setting, own, kl_batch)]
    _log_probs("standard", scored.pop(), _labels(net, batch))
    logits = logits_of(net, setting, phase, batch)
    sums = ops.total(_log_probs("standard", logits, _labels(net, batch)))
    copies = net.tape.empty(logits.shape, logits.dtype, "logits of each kind of answers")
    del logits  # a local variable of forward
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase, "kl.") as own:
            scored = [logits_of(net, setting, own, kl_batch)]
        _log_probs("standard", scored.pop(), _labels(net, batch))
        with as_reference(net, phase) as own:
            reference = logits_of(net, setting, own, batch)
        _log_probs("standard", reference, _labels(net, batch))
        copied = net.tape.empty(reference.shape, reference.dtype, "the reference's logits of each kind of answers")
        del reference, copied
    loss = of_samples(sums)
    del copies
    return loss


def _labels(net: Modules, batch: Batch) -> Tensor:
    """``labels[:, 1:].clone()``."""
    net.tape.module = "loss"
    rows, length = batch.inputs["input_ids"].shape
    return net.tape.empty((rows, length - 1), "int64", "labels without the first")


def _log_probs(loss: Loss, logits: Tensor, index: Tensor) -> Tensor:
    """``selective_log_softmax(logits[:, :-1, :], input_ids[:, 1:])``."""
    logits.tape.module = "loss"
    rows, length, vocabulary = logits.shape
    shifted = ops.sliced(logits, (rows, length - 1, vocabulary))
    return log_probs_of(loss, shifted, index, rows == 1).view(rows, length - 1)


def _summed(net: Modules, setting: StepSpec, phase: str, batch: Batch, extras: tuple[str, ...]) -> None:
    """``_compute_kl_logps``: of whose tensors only a number per sample stays."""
    labels = answer_labels(net, batch)
    fused_forward(net, setting, phase, batch, labels, extras)
