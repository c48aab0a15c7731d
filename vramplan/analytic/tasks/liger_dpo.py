"""DPO by Liger's fused loss, as TRL computes it from 1.0 to 1.12 with ``use_liger_kernel``.

(trainer/dpo_trainer.py: _compute_loss_liger.) The model below the head is called by itself, so that accelerate's
autocast, which wraps the whole model's forward, does not reach it: everything runs in the stored dtype.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.liger_preference import pair_loss
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.reference import as_reference


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``DPOTrainer._compute_loss_liger``."""
    tape, job = net.tape, setting.job
    ids = batch.inputs["input_ids"]
    states = language_model(forward_pass(net, setting, phase, batch), setting.config)
    tape.module = "loss"
    hidden = _shifted(states)
    with as_reference(net, phase) as own:
        reference_states = language_model(forward_pass(net, setting, own, batch), setting.config)
    tape.module = "loss"
    with tape.no_grad():
        reference = _shifted(reference_states)
    shape = (ids.shape[0], ids.shape[1] - 1)
    labels = tape.empty(shape, "int64", "labels")
    tied, vocabulary = (
        setting.architecture.is_tied(setting.config),
        setting.architecture.shape(setting.config).vocabulary,
    )
    weight = net.head_weight(vocabulary, hidden.shape[-1], tied)
    decoder = setting.architecture.decoder
    has_bias = decoder is not None and decoder.head_bias
    loss = pair_loss(hidden, weight, has_bias, scaled=job.gradient_accumulation_steps > 1)
    del states, reference_states, reference, labels
    return loss


def _shifted(states: Tensor) -> Tensor:
    """``last_hidden_state[:, :-1].contiguous()``."""
    rows, length, width = states.shape
    return ops.copy(ops.sliced(states, (rows, length - 1, width)), "hidden states without the last token")
