"""Reward models of LLaMA-Factory's `rm` stage: a whole language model with a value head beside it.

(LLaMA-Factory 0.9.5: train/rm/trainer.py; trl 0.24: models/modeling_value_head.py.) The collator's labels go to the
model too, whose cross-entropy nobody uses but whose graph lives until the loss is there. The logits are then copied in
fp32, although only the head's values count, and the states of all layers live until the forward returns.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples

DROPOUT = 0.1
"""ValueHead's summary_dropout_prob."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``PairwiseTrainer.compute_loss``."""
    job, tape = setting.job, net.tape
    with tape.autocasting(job.autocast if job.casts else None):
        logits, model_loss, values = _outputs(net, setting, phase, batch)
    tape.module = "loss"
    if job.casts:
        values = ops.to(values, "fp32", "values converted to fp32 (accelerate)")
    del logits  # `_, _, values = model(...)`: the second name keeps the model's own loss
    rows = values.shape[0]
    last = tape.empty((rows,), "int64", "last tokens of texts")
    loss = of_samples(ops.gather(values, last, (rows, 1)).view(rows))
    del model_loss, values
    return loss


def _outputs(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """``AutoModelForCausalLMWithValueHead.forward``: logits in fp32, the model's own loss, a value for each token."""
    net.states = []
    model_loss, outputs = setting.architecture.forward(forward_pass(net, setting, phase, batch), setting.config)
    states, net.states = net.states, None
    values = values_of(net, setting, states[-1])
    net.tape.module = "loss"  # no module's: the head's weight is not asked for again
    logits = ops.to(outputs[0], "fp32", "logits in fp32 beside the values")
    del states, outputs
    net.features.clear()
    return logits, model_loss, values


def values_of(net: Modules, setting: StepSpec, hidden: Tensor) -> Tensor:
    """``ValueHead``: (B, S) values of (B, S, width) states; its weights are fp32 unless an engine casts the model."""
    net.tape.module = "v_head"
    job = setting.job
    dtype = job.dtype if job.engine_casts else "fp32"
    weight = net.trained_head("v_head.summary.weight", dtype, 1, hidden.shape[-1])
    bias = net.trained_head("v_head.summary.bias", dtype, 1)
    dropped = ops.to(ops.dropout_layer(hidden, DROPOUT), dtype, "states in fp32")
    return ops.linear(dropped, weight, bias, "values").view(*hidden.shape[:2])
