"""DPO and KTO as ms-swift's own trainers compute them: from the first answer's first token on, with ``logits_to_keep``.

(4.6, rlhf_trainers/dpo_trainer.py, kto_trainer.py, rlhf_mixin.py: get_per_token_logps; trainers/mixin.py:
prepare_logits_to_keep.) All outputs of a forward are dropped before the next; TRL's selective_log_softmax keeps fp32
logits, or log-probabilities of half-precision ones.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, in_one_row, of_other_prompts
from vramplan.analytic.layers.label_log_probs import label_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples, scored_tokens
from vramplan.analytic.tasks.reference import WITH_MODEL, as_reference, without_gradients
from vramplan.analytic.tasks.shared_tokens import shared_answers
from vramplan.analytic.tasks.whole_logits import logits_of


def dpo_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``get_batch_loss_metrics``: the policy's concatenated_forward, then the reference's."""
    sums, metrics = _answer_log_probs(net, setting, phase, batch, phase)
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase) as own:
            _answer_log_probs(net, setting, own, batch, phase)
    loss = of_samples(sums)
    del metrics
    return loss


def kto_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``KTOTrainer.forward`` of the policy, then of the reference: each scores the answers of the KL term first."""
    kl_batch = of_other_prompts(batch)
    with without_gradients(net, phase, "policy.") as own:
        _answer_log_probs(net, setting, own, kl_batch, phase)
    sums, metrics = _answer_log_probs(net, setting, phase, batch, phase)
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase, "kl.") as own:
            _answer_log_probs(net, setting, own, kl_batch, phase)
        with as_reference(net, phase) as own:
            _answer_log_probs(net, setting, own, batch, phase)
    loss = of_samples(sums)
    del metrics
    return loss


def _answer_log_probs(net: Modules, setting: StepSpec, phase: str, batch: Batch, after: str) -> tuple[Tensor, Tensor]:
    """The log-probability of each answer, and the means of the logits, which live as long as it.

    `after` is the phase of what follows the model's own forward.
    """
    if setting.job.swift.sequence_parallel > 1:
        return shared_answers(net, setting, phase, batch, after)
    tape, kept = net.tape, scored_tokens(setting.job) + 1
    rows, length = batch.inputs["input_ids"].shape
    if setting.job.joins_samples:  # a mask selects the tokens of all answers of the row, and the last
        batch = in_one_row(batch, setting)
        rows, kept = 1, rows * (kept - 1) + 1
    logits = logits_of(net, setting, phase, batch, kept)
    tape.enter(after, None)
    tape.module = "loss"
    rolled = tape.empty((rows, kept), "int64", "labels rolled by one")
    scored = tape.empty((rows, kept), "bool", "tokens of answers")
    labels = tape.empty((rows, kept), "int64", "labels without a mask")
    means = tape.empty((rows, kept), logits.dtype, "means of the logits")
    per_token = label_log_probs(logits, labels).view(rows, kept)
    sums = ops.total(ops.mul(per_token, scored, "log-probabilities of answers"))
    net.features.clear()
    del logits, rolled, scored, labels, per_token  # with the function's locals
    return sums, means
