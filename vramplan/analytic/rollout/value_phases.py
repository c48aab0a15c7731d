"""The forwards without gradients of TRL's PPO: of the reference, of the value model, of the reward model.

(trl 1.9, experimental/ppo/ppo_trainer.py: train; experimental/utils.py: get_reward.) None runs under autocast, as the
wrapper of policy and value model alone does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.label_log_probs import label_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, record_of
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.trl_ppo import VALUES, inputs_of, numbers_of
from vramplan.analytic.tasks.whole_logits import own_logits
from vramplan.analytic.train_step import new_modules


def simulate_reference(setting: StepSpec, phase: str, rows: int) -> StepRecord:
    """The record of the reference's log-probabilities; the model without adapters needs what a second model does."""
    return _simulate(setting, phase, rows, _refer)


def simulate_values(setting: StepSpec, phase: str, rows: int, owner: str = VALUES) -> StepRecord:
    """The record of ``get_reward``: a number of each token, beside the states of all layers (``use_cache=False``).

    `owner`: stands in front of the names of the value model's weights; empty for a reward model.
    """
    setting = replace(setting, job=setting.job.model_copy(update={"keeps_outputs": False}))
    return _simulate(setting, phase, rows, _value, owner)


def _simulate(
    setting: StepSpec,
    phase: str,
    rows: int,
    run: Callable[[Modules, StepSpec, str, Batch], object],
    owner: str = "",
) -> StepRecord:
    """The record of a forward without gradients on so many completions, which are there already."""
    changes = {"micro_batch_size": rows, "checkpointing": "none", "autocast": "none"}
    setting = replace(setting, job=setting.job.model_copy(update=changes))
    net = new_modules(setting)
    tape = net.tape
    tape.owner = owner
    with tape.no_grad():
        tape.enter(phase, None)
        found = run(net, setting, phase, inputs_of(net, net.resident((rows, setting.job.sequence_length), "int64")))
    tape.enter("end", None)
    del found
    return record_of(tape)


def _refer(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> object:
    """The reference's log-probabilities; those of the model without adapters need what a second model's do."""
    net.training = replace(net.training, lora_rank=0, dora=False, modules_to_save=())
    rows, length = batch.inputs["input_ids"].shape
    new = scored_tokens(setting.job)
    net.states = []
    job = setting.job
    caches = {"keeps_outputs": job.ppo_trainer == "trl" or not job.loads_reference}  # ms-swift: use_cache of a second
    logits = own_logits(net, replace(setting, job=job.model_copy(update=caches)), phase, batch)
    del batch
    net.tape.module = "loss"
    answers = net.resident((rows, new, logits.shape[-1]), logits.dtype)  # a slice, divided in place
    found = label_log_probs(answers, net.resident((rows, new), "int64"))
    net.states = None
    net.cache.clear()
    del logits, answers, length
    return found


def _value(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> object:
    states, numbers, _ = numbers_of(net, setting, phase, batch)
    del states
    return numbers
