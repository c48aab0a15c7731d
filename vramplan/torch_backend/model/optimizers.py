"""transformers' optimizer names to the real optimizers, constructed as its Trainer does."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from vramplan.errors import MissingDependencyError, UnknownNameError
from vramplan.inputs.job import Job

Recipe = tuple[type[torch.optim.Optimizer], dict[str, Any]]
"""(class, keyword arguments)"""

OURS: dict[str, Recipe] = {
    "adamw_torch_loop": (torch.optim.AdamW, {"foreach": False}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9}),
}
"""Names that transformers does not have."""
ALIASES = {
    "adamw": "adamw_torch_fused",
    "adamw_hf": "adamw_torch",
    "lion": "lion_32bit",
    "ao_adamw_8bit": "adamw_torch_8bit",
}


def recipe(job: Job) -> Recipe:
    """What transformers' Trainer constructs for the job's optimizer; ask outside of a trace.

    Raises:
        UnknownNameError: for a name that transformers does not know.
        MissingDependencyError: for an optimizer whose package is not installed.
    """
    name = job.optimizer.lower()
    name = ALIASES.get(name, name)
    if name in OURS:
        return OURS[name]
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    known = [one.value for one in OptimizerNames]
    if name not in known:
        raise UnknownNameError("optimizer", job.optimizer, [*known, *OURS, *ALIASES])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, optim=name, use_cpu=True, report_to="none")
    try:
        made: Recipe = Trainer.get_optimizer_cls_and_kwargs(arguments)
    except (ImportError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise MissingDependencyError(f"--optimizer {job.optimizer} cannot be traced here: {said}") from error
    return made


def groups(module: nn.Module, job: Job) -> list[dict[str, Any]]:
    """The Trainer's two groups, with weight decay and without; one group in a plain loop."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if job.loop == "plain":
        return [{"params": [parameter for _, parameter in trained]}]
    from transformers import Trainer

    decaying = set(Trainer.get_decay_parameter_names(None, module))
    split = [[p for n, p in trained if n in decaying], [p for n, p in trained if n not in decaying]]
    return [{"params": group} for group in split if group]


def make(recipe: Recipe, module: nn.Module, job: Job) -> torch.optim.Optimizer:
    """The optimizer over the module's trained weights."""
    kind, arguments = recipe
    return kind(groups(module, job), **arguments)
