"""DPO as torchtune's own recipe computes it (0.6.1: recipes/lora_dpo_single_device.py, rlhf/sequence_processing.py).

Logits in fp32 are divided by a temperature of 1 into a copy, whose log-softmax is saved. The loop's name for the
reference's logits, which it does not use, keeps them until the reference of the next micro-batch has replaced them.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.label_log_probs import log_softmax_of_scaled
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.reference import as_reference


def dpo_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``LoRADPORecipeSingleDevice.train``: concatenated_forward of the policy, then of the reference."""
    tape = net.tape
    if setting.job.loads_reference:
        return _of_two_models(net, setting, phase, batch)
    if tape.grad_enabled and not net.loop_locals:
        vocabulary = setting.architecture.shape(setting.config).vocabulary
        shape = (*batch.inputs["input_ids"].shape, vocabulary)
        net.loop_locals.append(tape.empty(shape, "fp32", "logits of the last micro-batch's reference", "logits"))
    sums = _answer_log_probs(_logits(net, setting, phase, batch))
    with as_reference(net, phase) as own:
        reference = _logits(net, setting, own, batch)
    _answer_log_probs(reference)
    net.loop_locals[:] = [reference] if tape.grad_enabled else []
    del reference
    return of_samples(sums)


def _of_two_models(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``FullDPORecipeDistributed.train``: log-probabilities of each half, and the reference's logits are deleted."""
    sums = _of_halves(_logits(net, setting, phase, batch))
    with as_reference(net, phase) as own:
        reference = _logits(net, setting, own, batch)
    _of_halves(reference)
    del reference
    return of_samples(sums)


def _of_halves(logits: Tensor) -> Tensor:
    """The log-probabilities of chosen answers, then of rejected ones."""
    samples, length, vocabulary = logits.shape
    half = (samples // 2, length, vocabulary)
    logits.tape.module = "loss"
    chosen = _answer_log_probs(ops.sliced(logits, half))
    return ops.add(chosen, _answer_log_probs(ops.sliced(logits, half)))


def _logits(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``TransformerDecoder.forward``, whose locals are the hidden states before and behind the norm.

    (modules/transformer.py: unembed, ``self.output(h).float()``.)
    """
    config, architecture = setting.config, setting.architecture
    forward = forward_pass(net, setting, phase, batch)
    decoder = decoder_of(forward)
    states = language_model(forward, config)
    hidden = decoder.before_head(net, config, states)
    vocabulary, tied = architecture.shape(config).vocabulary, architecture.is_tied(config)
    logits = decoder.after_head(net, config, net.head(hidden, vocabulary, tied, decoder.head_bias))
    net.tape.module = "unembed"
    return ops.to(logits, "fp32", "logits in fp32")


def _answer_log_probs(logits: Tensor) -> Tensor:
    """``get_batch_log_probs``: the log-probability of each answer."""
    tape, (rows, length, _) = logits.tape, logits.shape
    tape.module = "loss"
    labels = tape.empty((rows, length - 1), "int64", "shifted labels")
    scored = tape.empty((rows, length - 1), "bool", "tokens of answers")
    found = log_softmax_of_scaled(logits, labels)
    return ops.total(ops.mul(found, scored, "log-probabilities of answers"))
