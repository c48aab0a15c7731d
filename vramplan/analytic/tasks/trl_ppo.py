"""PPO as TRL trains a policy and a value model together on completions.

Mirrors trl 1.9 (experimental/ppo/ppo_trainer.py: PolicyAndValueWrapper, forward, train; experimental/utils.py:
get_reward), 0.15 to 0.24 alike. Both models give the states of all layers, and keys and values, which nobody asks
for. The outputs of a micro-batch, and the probabilities that the log's entropies are made of, are named until the next
one replaces them.
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.label_log_probs import label_log_probs, log_sum_exp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.whole_logits import own_logits

VALUES = "value_model."
"""In front of the names of the value model's weights that belong to no layer."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """A micro-batch of ``train``: the forward of both models, and the losses of policy and values."""
    tape, job = net.tape, setting.job
    _log(net)
    tape.module = "inputs"
    shape = job.micro_batch_size, scored_tokens(job)
    ids = tape.empty((job.micro_batch_size, job.sequence_length), "int64", "queries with responses")
    labels = tape.empty(shape, "int64", "responses")
    names = "advantages", "log-probabilities before", "returns", "values before"
    given = [tape.empty(shape, "fp32", name) for name in names]
    held, logits, values = _outputs(net, setting, phase, ids)
    net.loop_locals.clear()
    tape.module = "loss"
    logits = ops.scale_slice(logits, (*shape, logits.shape[-1]))
    log_probs = ops.masked(label_log_probs(logits, labels).view(*shape), tape.empty(shape, "bool", "padding"))
    values = ops.masked(ops.sliced(values, shape), tape.empty(shape, "bool", "padding"))
    net.loop_locals[:] = [logits, *held, values, log_probs, ids, labels, *given]
    return _loss(log_probs, values, given)


def _outputs(net: Modules, setting: StepSpec, phase: str, ids: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """``PolicyAndValueWrapper.forward``: what the policy's output holds, its logits, a value for each token."""
    tape, job = net.tape, setting.job
    assert setting.values is not None
    batch = inputs_of(net, ids)
    with tape.autocasting(job.autocast if job.casts else None):
        states, values, cache = values_of(net, setting.values, phase, batch)
        net.states = []
        caching = replace(setting, job=job.model_copy(update={"keeps_outputs": True}))
        logits = own_logits(net, caching, phase, batch)
        own, net.states = net.states, None
        del states, cache
    del batch
    if job.casts:
        kept = [logits, *own, values]
        logits, *own, values = [ops.to(one, "fp32", "outputs converted to fp32 (accelerate)") for one in kept]
        kept.reverse()
        del kept
    held = [*own, *net.cache]
    net.cache.clear()
    return held, logits, values


def inputs_of(net: Modules, ids: Tensor) -> Batch:
    """What ``forward`` makes of tokens: ids without padding, a mask, positions."""
    tape, shape = net.tape, ids.shape
    tape.module = "inputs"
    mask = tape.empty(shape, "bool", "attention mask")
    counted = [tape.empty(shape, "int64", what) for what in ("tokens so far", "mask as numbers")]
    positions = tape.empty(shape, "int64", "positions")
    del counted
    inputs = {"input_ids": tape.empty(shape, "int64", "input ids"), "attention_mask": mask, "position_ids": positions}
    return Batch(inputs, [])


def values_of(net: Modules, values: StepSpec, phase: str, batch: Batch) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """The states of a scoring model's layers, the number of each token, and keys and values."""
    with net.tape.second_model(VALUES):
        critic = Modules(net.tape, values.training(), values.liger)
        return numbers_of(critic, values, phase, batch)


def numbers_of(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """The same of the model itself: ``model.score(lm_backbone(...).hidden_states[-1])``."""
    net.states = []
    hidden = language_model(forward_pass(net, setting, phase, batch), setting.config)
    states, net.states = net.states, None
    net.tape.module = "score"
    weight = net.parameter("score.weight", 1, hidden.shape[-1])
    numbers = ops.linear(hidden, weight, None, "number for each token")
    return states, numbers.view(*hidden.shape[:2]), net.cache


def _loss(log_probs: Tensor, values: Tensor, given: list[Tensor]) -> Tensor:
    """Clipped values and clipped ratios, means over the responses."""
    advantages, before, returns, _ = given
    rows = log_probs.shape[0] * log_probs.shape[1]
    squares = [ops.square(ops.subtract(one, returns)) for one in (values, ops.clamp(values))]
    of_values = ops.scale(ops.total(ops.least(*squares).view(rows)))
    ratio = ops.exp(ops.subtract(log_probs, before))
    products = [ops.mul(advantages, one) for one in (ratio, ops.clamp(ratio))]
    of_policy = ops.scale(ops.total(ops.least(*products).view(rows)))
    return ops.add(of_policy, of_values)


def finish(net: Modules) -> None:
    """The end of a mini-batch: its last micro-batch is logged, all names are deleted, the cache is emptied."""
    _log(net)
    net.logged.clear()
    net.loop_locals.clear()
    net.tape.empty_cache()


def _log(net: Modules) -> None:
    """What the loop logs of the micro-batch before: entropies of probabilities that it names until the next."""
    if not net.loop_locals:
        return
    tape, logits = net.tape, net.loop_locals[0]
    shape, dtype = logits.shape, logits.dtype
    tape.module = "loss"
    with tape.no_grad():
        copied = tape.empty(shape, dtype, "logits copied", "workspace") if shape[0] > 1 else None
        chances = tape.empty(shape, dtype, "probabilities", "logits")
        del copied
        net.logged[:] = [chances]  # the name of those before it
        sums = log_sum_exp(logits, shape[:2])
        products = tape.empty(shape, dtype, "probabilities times logits", "logits")
        del products, sums, chances
