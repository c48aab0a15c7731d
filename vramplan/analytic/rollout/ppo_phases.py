"""What LLaMA-Factory's PPO does without gradients before it trains: it rewards and scores a micro-batch at a time.

(0.9.5, train/ppo/trainer.py: get_rewards; trl 0.9.6, trainer/ppo_trainer.py: step.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.analytic.batch import Batch, make_batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, record_of
from vramplan.analytic.tasks import ppo
from vramplan.analytic.train_step import new_modules


def simulate_scoring(setting: StepSpec) -> StepRecord:
    """The record of a micro-batch's log-probabilities without gradients: the policy's, in training mode."""
    return _simulate(setting, "scoring", ppo.score, training=True)


def simulate_rewards(setting: StepSpec) -> StepRecord:
    """The record of the reward model's forward on a micro-batch: the policy's layers with other adapters."""
    return _simulate(setting, "reward", ppo.outputs, training=False)


def _simulate(
    setting: StepSpec, phase: str, run: Callable[[Modules, StepSpec, str, Batch], object], training: bool
) -> StepRecord:
    """The record of a forward without gradients, whose results and batch live to its end."""
    net = new_modules(replace(setting, job=setting.job.model_copy(update={"checkpointing": "none"})))
    tape = net.tape
    tape.training = training
    with tape.no_grad():
        batch = make_batch(tape, setting, phase, setting.job.micro_batch_size)
        found = run(net, setting, phase, batch)
    tape.enter("end", None)
    del found, batch
    return record_of(tape)
