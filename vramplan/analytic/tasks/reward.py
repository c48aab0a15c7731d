"""Reward models: one number for a text, learned from pairs (trl 1.16, trainer/reward_trainer.py: compute_loss).

The class is transformers' ``<Model>ForSequenceClassification`` with one label (5.23, modeling_layers.py:
GenericForSequenceClassification).
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import value_head
from vramplan.analytic.tasks.fused_head import of_samples


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``RewardTrainer.compute_loss``."""
    if setting.job.loss == "value_head":
        return value_head.compute_loss(net, setting, phase, batch)
    if setting.job.loss == "two_forwards":
        return _of_two_forwards(net, setting, phase, batch)
    return of_samples(_converted_rewards(net, setting, phase, batch))


def _of_two_forwards(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The same of TRL before 0.24: a forward of the chosen texts, then one of the rejected ones."""
    tape = net.tape
    rewards: list[Tensor] = []
    for number, kind in enumerate(("chosen", "rejected")):
        inputs = {name: batch.inputs[f"{name}_{kind}"] for name in ("input_ids", "attention_mask")}
        tape.run = number
        tape.enter(tape.phase, None)
        rewards.append(_converted_rewards(net, setting, phase, batch._replace(inputs=inputs)))
    loss = of_samples(ops.subtract(rewards[0], rewards[1], "chosen less rejected rewards"))
    tape.run = 0
    return loss


def _converted_rewards(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The model's outputs, which accelerate converts to fp32 under autocast."""
    job, tape = setting.job, net.tape
    with tape.autocasting(job.autocast if job.casts else None):
        rewards = rewards_of(net, setting, phase, batch)
    tape.module = "loss"
    return ops.to(rewards, "fp32", "outputs converted to fp32 (accelerate)") if job.casts else rewards


def rewards_of(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The number at the last token of each text."""
    tape, ids = net.tape, batch.inputs["input_ids"]
    hidden = language_model(forward_pass(net, setting, phase, batch), setting.config)
    tape.module = "score"
    logits = ops.linear(hidden, net.parameter("score.weight", 1, hidden.shape[-1]), None, "number for each token")
    mask = tape.empty(ids.shape, "int32", "tokens that are no padding")
    places = tape.empty(ids.shape[1:], "int32", "places of tokens")
    products = tape.empty(ids.shape, "int32", "places of tokens that are no padding")
    last = tape.empty(ids.shape[:1], "int64", "last token of each text")
    del products
    rows = tape.empty(ids.shape[:1], "int64", "numbers of texts")
    rewards = ops.chosen(logits, last, (ids.shape[0], 1), "numbers of the last tokens")
    del rows, mask, places, last, hidden, logits
    return rewards
