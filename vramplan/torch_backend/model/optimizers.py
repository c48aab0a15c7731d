"""The torch optimizer of a job, constructed as transformers' Trainer does."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from vramplan.errors import MissingDependencyError, UnknownNameError, setting
from vramplan.inputs.job import Job
from vramplan.memory.optimizers import ALIASES, OPTIMIZERS, check_optimizer, check_weights, modelled

Recipe = tuple[type[torch.optim.Optimizer], dict[str, Any]]
"""(class, keyword arguments)"""


def recipe(job: Job) -> Recipe:
    """Class and arguments of the job's optimizer; call it outside of a trace.

    Raises:
        UnknownNameError: for a name that transformers does not have.
        MissingDependencyError: for an optimizer whose package is not installed.
        ConfigError: for a setting of the job that the optimizer does not run with.
    """
    check_optimizer(job)
    record = modelled(job.optimizer)
    if record is not None and record.torch_class:
        kind = getattr(torch.optim, record.torch_class, None)
        if kind is None:
            raise MissingDependencyError(
                f"{setting('optimizer', job.optimizer)}: torch {torch.__version__} has no torch.optim."
                + record.torch_class
            )
        return kind, dict(record.torch_arguments)
    name = job.optimizer.lower() if record is None else record.trainer_name or record.name
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    names = [member.value for member in OptimizerNames]
    if name not in names:
        raise UnknownNameError("optimizer", job.optimizer, [*names, *OPTIMIZERS, *ALIASES])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, optim=name, use_cpu=True, report_to="none")
    try:
        result: Recipe = Trainer.get_optimizer_cls_and_kwargs(arguments)
    except (ImportError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MissingDependencyError(
            f"{setting('optimizer', job.optimizer)} cannot be constructed here: {reason}"
        ) from error
    return result


def groups(module: nn.Module, job: Job) -> list[dict[str, Any]]:
    """Parameter groups: the Trainer's two, with weight decay and without, or one in a plain loop."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if job.loop == "plain":
        return [{"params": [parameter for _, parameter in trained]}]
    from transformers import Trainer

    decaying = set(Trainer.get_decay_parameter_names(None, module))
    split = [[p for n, p in trained if n in decaying], [p for n, p in trained if n not in decaying]]
    return [{"params": group} for group in split if group]


def make(recipe: Recipe, module: nn.Module, job: Job) -> torch.optim.Optimizer:
    """The optimizer over the module's trained weights.

    Raises:
        ConfigError: for a trained weight that the optimizer does not take.
    """
    kind, arguments = recipe
    check_weights(job, ((name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad))
    if job.loop == "trainer" and "bitsandbytes" in str(kind) and arguments.get("optim_bits") == 8:
        _keep_embeddings_in_32_bits(module)
    return kind(groups(module, job), **arguments)


def _keep_embeddings_in_32_bits(module: nn.Module) -> None:
    """Register embeddings as transformers' Trainer does for 8-bit optimizers (5.23, Trainer.create_optimizer)."""
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()  # forget the modules of an earlier optimizer in this process
    for submodule in module.modules():
        if isinstance(submodule, nn.Embedding):
            manager.register_module_override(submodule, "weight", {"optim_bits": 32})
