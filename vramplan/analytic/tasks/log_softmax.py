"""DPO and KTO as LLaMA-Factory's own trainers compute them: by a log-softmax of all logits in fp32.

(0.9.5: train/dpo/trainer.py, train/kto/trainer.py, train/trainer_utils.py: get_batch_logps.) ORPO and SimPO are DPO
without a reference there. The logits live until the loss exists, for the metrics. Before 0.9.4 DPO's labels go to the
model too, whose own cross-entropy is dropped with its output; it takes no more than the log-softmax that follows.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, of_other_prompts
from vramplan.analytic.layers.label_log_probs import log_softmax_of_labels
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.reference import WITH_MODEL, as_reference, without_gradients
from vramplan.analytic.tasks.whole_logits import logits_of


def dpo_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``get_batch_loss_metrics`` of CustomDPOTrainer: the policy's concatenated_forward, then the reference's."""
    has_reference = setting.job.reference_source in WITH_MODEL
    given = _cloned(net, batch) if has_reference else batch
    logits = logits_of(net, setting, phase, given)
    logits = _in_fp32(net, logits)
    sums = _answer_log_probs(logits)
    del given
    if has_reference:
        given = _cloned(net, batch)
        with as_reference(net, phase) as own:
            reference = logits_of(net, setting, own, given)
        reference = _in_fp32(net, reference)
        _answer_log_probs(reference)
        del given, reference
    loss = of_samples(sums)
    del logits
    return loss


def kto_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``get_batch_loss_metrics`` of CustomKTOTrainer: each concatenated_forward scores the answers of the KL term too.

    The logits of desirable and of undesirable answers are copies, which replace the logits themselves.
    """
    logits = logits_of(net, setting, phase, _cloned(net, batch))
    logits = _in_fp32(net, logits)
    sums = _answer_log_probs(logits)
    with without_gradients(net, phase, "policy.") as own:
        kl_logits = logits_of(net, setting, own, of_other_prompts(_cloned(net, batch)))
    kl_logits = _in_fp32(net, kl_logits)
    _answer_log_probs(kl_logits)
    del kl_logits
    copies = _by_tag(logits)
    del logits
    if setting.job.reference_source in WITH_MODEL:
        with as_reference(net, phase) as own:
            reference = logits_of(net, setting, own, _cloned(net, batch))
        reference = _in_fp32(net, reference)
        _answer_log_probs(reference)
        with as_reference(net, phase, "kl.") as own:
            kl_logits = logits_of(net, setting, own, of_other_prompts(_cloned(net, batch)))
        kl_logits = _in_fp32(net, kl_logits)
        _answer_log_probs(kl_logits)
        del kl_logits
        _by_tag(reference)
        del reference
    loss = of_samples(sums)
    del copies
    return loss


def _cloned(net: Modules, batch: Batch) -> Batch:
    """``nested_detach(batch, clone=True)``."""
    net.tape.module = "inputs"
    clones = {name: net.tape.empty(one.shape, one.dtype, f"{name} cloned") for name, one in batch.inputs.items()}
    return batch._replace(inputs=clones)


def _in_fp32(net: Modules, logits: Tensor) -> Tensor:
    """``logits.to(torch.float32)``, whose caller gives up the half-precision ones; no other output is held."""
    net.features.clear()
    net.tape.module = "loss"
    return ops.to(logits, "fp32", "logits in fp32")


def _answer_log_probs(logits: Tensor) -> Tensor:
    """``get_batch_logps``: the log-probability of each answer."""
    tape, (rows, length, _) = logits.tape, logits.shape
    labels = tape.empty((rows, length - 1), "int64", "shifted labels")
    scored = tape.empty((rows, length - 1), "bool", "tokens of answers")
    found = log_softmax_of_labels(logits, labels)
    return ops.total(ops.mul(found, scored, "log-probabilities of answers"))


def _by_tag(logits: Tensor) -> list[Tensor]:
    """``logits[tags]`` and ``logits[~tags]``: together as large as all of them."""
    rows, rest = logits.shape[0], logits.shape[1:]
    counts = (rows - rows // 2, rows // 2)
    return [ops.gathered(logits, (count, *rest), "logits of answers") for count in counts if count]
