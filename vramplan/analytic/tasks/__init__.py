"""The forward and the loss of each task that is not what an architecture is trained for by default."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import embedding, sequence_classification, token_classification
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.job import Task
from vramplan.inputs.model_spec import Config

Forward = Callable[[ForwardPass, Config], ModelOutput]

FORWARDS: dict[Task, Forward] = {
    "sequence_classification": sequence_classification.forward,
    "token_classification": token_classification.forward,
    "reranker": sequence_classification.forward,
}
"""By task."""

RUNS: dict[Task, Callable[..., Tensor]] = {"embedding": embedding.run}
"""Tasks whose loss needs several forwards of the model: each is a function of the same form."""


def forward_of(setting_of_step: StepSpec) -> Forward:
    """The forward of a step's task.

    Raises:
        UnsupportedError: if it is not modelled.
    """
    task = setting_of_step.job.task
    if task is None:
        return setting_of_step.architecture.forward
    if task not in FORWARDS:
        raise UnsupportedError(f"{setting('task', task)} is not modelled yet")
    return FORWARDS[task]


__all__ = ["FORWARDS", "RUNS", "Forward", "forward_of"]
