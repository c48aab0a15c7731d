"""OpenRLHF's critic: a number for each token by a model without its head, and a loss of clipped values.

Mirrors OpenRLHF 0.11 (trainer/ray/ppo_critic.py: CriticPPOTrainer.training_step; models/model.py: _get_critic_model;
models/loss.py: ValueLoss). It gets the actor's samples. The model's output, and with it the last hidden states, has a
name until the optimizer step is over.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.openrlhf_actor import hold_earlier


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``critic_loss`` of a micro-batch of prompts with their responses."""
    tape, shape = net.tape, batch.inputs["input_ids"].shape
    hold_earlier(net, setting, phase, batch)
    values, hidden = _token_values(net, setting, phase, batch)
    net.loop_locals.append(hidden)
    del hidden
    tape.module = "loss"
    before, returns = (tape.empty(shape, "fp32", what) for what in ("values before", "returns"))
    mask = tape.empty(shape, "fp32", "tokens of responses")
    clipped = ops.add(before, ops.clamp(ops.subtract(values, before)))
    first, second = (ops.square(ops.subtract(one, returns)) for one in (clipped, values))
    per_token = ops.mul(ops.least(first, second), mask)
    del before, returns, clipped, first, second, mask
    return ops.scale(ops.scale(ops.total(per_token)))


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """Values without gradients and without dropout (``critic.eval``)."""
    net.tape.training = False
    return _token_values(net, setting, phase, batch)[0]


def _token_values(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, S) values, and the hidden states that the model's output holds."""
    tape, ids = net.tape, batch.inputs["input_ids"]
    shape = ids.shape
    tape.module = "inputs"
    positions = tape.empty(shape, "int64", "positions of tokens")
    hidden = language_model(forward_pass(net, setting, phase, batch), setting.config)
    values = net.linear("score", hidden, 1).view(*shape)
    tape.module = "loss"
    del positions, ids
    if setting.job.batches != "padded":
        values = ops.copy(values, "values of each sample")
    mask = tape.empty(shape, "fp32", "tokens of responses")
    return ops.mul(values, mask, "values of responses"), hidden
