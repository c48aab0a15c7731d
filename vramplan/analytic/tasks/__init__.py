"""What a model is trained for, if that is not the next token: one file for each trainer or kind of label.

A task is either a forward with a loss of its own (``forward(forward_pass, config)``), or everything that a trainer's
``compute_loss`` does: ``compute_loss(net, setting, phase, batch)``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Loss, Task
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import IMAGES

Forward = Callable[[ForwardPass, Config], ModelOutput]
ComputeLoss = Callable[[Modules, StepSpec, str, Batch], Tensor]
FORWARDS: dict[Task, str] = {
    "sequence_classification": "sequence_classification",
    "token_classification": "token_classification",
    "reranker": "sequence_classification",
    "generative_reranker": "generative_reranker",
}
"""The file of each task that is one forward."""
LOSSES: dict[Task, str] = {
    "embedding": "embedding",
    "dpo": "dpo",
    "kto": "kto",
    "reward": "reward",
    "orpo": "odds",
    "cpo": "odds",
    "simpo": "odds",
    "grpo": "grpo",
    "rloo": "rloo",
    "gkd": "gkd",
    "ppo": "ppo",
}
"""The file of each task whose trainer computes the loss itself."""


LOSSES_OF_LOOPS: dict[Loss, str] = {"kept_log_probs": "kept_log_probs"}
"""The file of each way to compute the loss that is of a training loop, whatever its task."""
Score = Callable[[Modules, StepSpec, str, Batch], Tensor]


def forward_of(setting: StepSpec) -> Forward:
    """The forward of a step, with its loss."""
    task = setting.job.task
    if task is None or task in IMAGES:
        return setting.architecture.forward
    found: Forward = _file(FORWARDS[task]).forward
    return found


def compute_loss_of(job: Job) -> ComputeLoss | None:
    """What a task's trainer does to compute its loss; None if that is one forward."""
    if job.is_verl_critic:
        return _compute_loss("verl_critic")
    own = _actor_of(job) or ("trl_ppo" if job.value_model is not None else None)
    if job.task is None and job.swift.sequence_parallel > 1:
        return _compute_loss("shared_tokens")
    name = own or LOSSES_OF_LOOPS.get(job.loss) or (job.task and LOSSES.get(job.task))
    return None if name is None else _compute_loss("joined_texts" if job.joins_texts else name)


def _compute_loss(name: str) -> ComputeLoss:
    found: ComputeLoss = _file(name).compute_loss
    return found


def finish_of(job: Job) -> Callable[[Modules], None] | None:
    """What a task's loop does behind the optimizer's step; None for nothing."""
    if job.value_model is None:
        return None
    found: Callable[[Modules], None] = _file("trl_ppo").finish
    return found


def score_of(job: Job) -> Score:
    """What a task that generates completions computes of them without gradients."""
    name = "verl_critic" if job.is_verl_critic else _actor_of(job) or "grpo"
    found: Score = _file(name).score
    return found


def _actor_of(job: Job) -> str | None:
    """The file of a framework's own reinforcement training; None for TRL's trainers and those after them."""
    if job.runs_openrlhf:
        return f"openrlhf_{'critic' if job.openrlhf.trains == 'critic' else 'actor'}"
    if not job.runs_verl:
        return None
    return "verl_padded" if job.batches == "padded" else "verl"


def _file(name: str) -> Any:
    return import_module(f"vramplan.analytic.tasks.{name}")
