"""What a model is trained for, if that is not the next token: one file per trainer.

Each gives a function ``(net, setting, phase, batch) -> loss``: everything that the trainer's ``compute_loss`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec

ComputeLoss = Callable[[Modules, StepSpec, str, Batch], Tensor]
FILES = {
    "dpo": "dpo", "kto": "kto", "reward": "reward", "orpo": "odds", "cpo": "odds", "simpo": "odds", "grpo": "grpo",
}  # fmt: skip


def task_of(name: str) -> ComputeLoss:
    """The loss of a task."""
    found: ComputeLoss = import_module(f"vramplan.analytic.tasks.{FILES[name]}").compute_loss
    return found
