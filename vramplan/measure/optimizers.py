"""transformers' optimizer names to the real optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vramplan.errors import UnsupportedError
from vramplan.job import Job

LEARNING_RATE = 1e-4


def groups(module: nn.Module, job: Job) -> list[dict[str, Any]]:
    """The Trainer's two groups, with weight decay and without; one group in a plain loop."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if job.loop == "plain":
        return [{"params": [parameter for _, parameter in trained]}]
    from transformers import Trainer

    decaying = set(Trainer.get_decay_parameter_names(None, module))
    split = [[p for n, p in trained if n in decaying], [p for n, p in trained if n not in decaying]]
    return [{"params": group} for group in split if group]


def make(module: nn.Module, job: Job) -> torch.optim.Optimizer:
    """The job's optimizer over the module's trained weights.

    Raises:
        UnsupportedError: for one that no trace knows.
    """
    parameters = groups(module, job)
    optim = torch.optim
    name = job.optimizer.lower()
    if name in ("adamw_torch_fused", "adamw"):
        return optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    if name in ("adamw_torch", "adamw_hf"):  # on CUDA foreach is torch's default
        return optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)
    if name == "adamw_torch_loop":
        return optim.AdamW(parameters, lr=LEARNING_RATE, foreach=False)
    if name in ("sgd", "sgd_momentum"):
        return optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9 if name == "sgd_momentum" else 0.0, foreach=True)
    if name == "rmsprop":
        return optim.RMSprop(parameters, lr=LEARNING_RATE, foreach=True)
    if name == "adagrad":
        return optim.Adagrad(parameters, lr=LEARNING_RATE, foreach=True)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)
    raise UnsupportedError(f"--optimizer {job.optimizer} cannot be traced; use --by analytic")
