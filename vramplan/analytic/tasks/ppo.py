"""PPO as LLaMA-Factory trains a policy with a value head on completions.

Mirrors LLaMA-Factory 0.9.5 (train/ppo/trainer.py: batched_forward_pass) and trl 0.9.6 (trainer/ppo_trainer.py: step,
loss; models/modeling_value_head.py). The logits are copied in fp32, once more to join those of several forwards, and
their entropy is computed with a graph that nobody uses. The copy, and the graph behind log-probabilities and values,
live on until those of the next micro-batch are there.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.label_log_probs import log_softmax_of_labels
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.value_head import values_of
from vramplan.analytic.tasks.whole_logits import own_logits


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """A micro-batch of ``step``: the forward with gradients, and the losses of policy and values."""
    tape = net.tape
    tape.empty_cache()
    logits, values = outputs(net, setting, phase, batch)
    tape.module = "loss"
    found = label_log_probs(net, logits)
    shape = found.shape
    joined = tape.empty(logits.shape, "fp32", "logits joined")
    values = ops.sliced(ops.join_rows([values], values.shape), shape)
    del logits
    net.loop_locals[:] = [joined, found, values]
    loss = _loss(net, found, values)
    _entropy(net, joined)
    return loss


def outputs(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """``AutoModelForCausalLMWithValueHead.forward`` without labels: logits in fp32, a value for each token."""
    job, tape = setting.job, net.tape
    with tape.autocasting(job.autocast if job.casts else None):
        net.states = []
        own = own_logits(net, setting, phase, batch)
        states, net.states = net.states, None
        values = values_of(net, setting, states[-1])
        tape.module = "lm_head"
        logits = ops.to(own, "fp32", "logits in fp32")
        del states, own
    return logits, values


def label_log_probs(net: Modules, logits: Tensor) -> Tensor:
    """Log-probabilities of the next tokens, and the mask of a micro-batch's answers."""
    tape, (rows, length, _) = net.tape, logits.shape
    mask = tape.empty((rows, length), "int64", "mask of the answers")
    found = log_softmax_of_labels(logits, tape.empty((rows, length - 1), "int64", "next tokens"))
    del mask
    return ops.join_rows([found], found.shape)


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """A micro-batch without gradients: log-probabilities and values."""
    logits, values = outputs(net, setting, phase, batch)
    net.tape.module = "loss"
    found = label_log_probs(net, logits)
    del logits
    return found, values


def _loss(net: Modules, log_probs: Tensor, values: Tensor) -> Tensor:
    """``PPOTrainer.loss``: clipped values and clipped ratios, means over the answers."""
    tape, shape = net.tape, log_probs.shape
    mask = tape.empty(shape, "int64", "mask of the answers")
    returns, before, advantages = (
        tape.empty(shape, "fp32", name) for name in ("returns", "values before", "advantages")
    )
    clipped = ops.clamp(values)
    squares = [ops.square(ops.subtract(one, returns)) for one in (values, clipped)]
    of_values = ops.scale(ops.total(ops.mul(ops.least(*squares), mask).view(shape[0] * shape[1])))
    ratio = ops.exp(ops.subtract(log_probs, tape.empty(shape, "fp32", "log-probabilities before")))
    products = [ops.mul(advantages, one) for one in (ratio, ops.clamp(ratio))]
    of_policy = ops.scale(ops.total(ops.mul(ops.least(*products), mask).view(shape[0] * shape[1])))
    del before
    return ops.add(of_policy, of_values)


def _entropy(net: Modules, logits: Tensor) -> None:
    """``entropy_from_logits(logits[:, :-1])``, whose graph goes when the loss is there."""
    tape, (rows, length, vocabulary) = net.tape, logits.shape
    shape = rows, length - 1, vocabulary
    copied = tape.empty(shape, "fp32", "shifted logits copied", "workspace") if rows > 1 else None
    chances = tape.empty(shape, "fp32", "probabilities", "logits")
    del copied
    exponentials = tape.empty(shape, "fp32", "exponentials", "workspace")
    del exponentials
    products = tape.empty(shape, "fp32", "probabilities times logits", "logits")
    del products, chances
