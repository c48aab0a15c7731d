"""DPO as torchtune's own recipe computes it (0.6.1: recipes/lora_dpo_single_device.py, rlhf/sequence_processing.py).

Logits in fp32 are divided by a temperature of 1 into a copy, whose log-softmax is saved. The loop's name for the
reference's logits, which it does not use, keeps them until the reference of the next micro-batch has replaced them.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.label_log_probs import log_softmax_of_scaled
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.reference import as_reference
from vramplan.analytic.tasks.whole_logits import logits_of


def dpo_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``LoRADPORecipeSingleDevice.train``: concatenated_forward of the policy, then of the reference."""
    tape = net.tape
    if tape.grad_enabled and not net.loop_locals:
        vocabulary = setting.architecture.shape(setting.config).vocabulary
        shape = (*batch.inputs["input_ids"].shape, vocabulary)
        net.loop_locals.append(tape.empty(shape, "fp32", "logits of the last micro-batch's reference", "logits"))
    sums = _answer_log_probs(_in_fp32(logits_of(net, setting, phase, batch)))
    with as_reference(net, phase) as own:
        reference = _in_fp32(logits_of(net, setting, own, batch))
    _answer_log_probs(reference)
    net.loop_locals[:] = [reference] if tape.grad_enabled else []
    del reference
    return of_samples(sums)


def _in_fp32(logits: Tensor) -> Tensor:
    """``self.output(h).float()`` (modules/transformer.py: unembed)."""
    return ops.to(logits, "fp32", "logits in fp32")


def _answer_log_probs(logits: Tensor) -> Tensor:
    """``get_batch_log_probs``: the log-probability of each answer."""
    tape, (rows, length, _) = logits.tape, logits.shape
    tape.module = "loss"
    labels = tape.empty((rows, length - 1), "int64", "shifted labels")
    scored = tape.empty((rows, length - 1), "bool", "tokens of answers")
    found = log_softmax_of_scaled(logits, labels)
    return ops.total(ops.mul(found, scored, "log-probabilities of answers"))
