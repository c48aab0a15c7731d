"""The model that a function of the user's returns."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.first_line import first_line
from vramplan.torch_backend.model.subject import Subject
from vramplan.torch_backend.out_of_memory import is_out_of_memory


def from_import_path(path: str, job: Job, device: str) -> Subject:
    """The model and example inputs that ``package.module:function`` returns, as (nn.Module, inputs).

    The function may take `micro_batch_size` and `sequence_length`, and is called with the job's; if it takes no
    `micro_batch_size`, the job's must be the example's. Inputs are a dictionary or a tuple of tensors; the model's
    output must be a scalar loss or have one as `loss`.

    Raises:
        ConfigError: if there is no such function, or it returns something else.
    """
    name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(name), attribute)
        parameters = inspect.signature(function).parameters
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: cannot be imported ({first_line(error)})") from error
    if job.attention != "sdpa":
        raise ConfigError(f"{setting('attention', job.attention)}: a model of your own chooses its attention itself")
    arguments = {"micro_batch_size": job.micro_batch_size, "sequence_length": job.sequence_length}
    try:
        with torch.device(device):
            returned = function(**{name: value for name, value in arguments.items() if name in parameters})
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(f"{path}: the function failed: {type(error).__name__}: {first_line(error)}") from error
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], nn.Module)):
        raise ConfigError(f"{path}: expected (nn.Module, example inputs), got {type(returned).__name__}")
    module, example = returned
    if isinstance(example, torch.Tensor):
        example = (example,)
    tensors = list(example.values()) if isinstance(example, Mapping) else list(example)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ConfigError(f"{path}: the example inputs must be tensors, in a dictionary or a tuple")
    if "micro_batch_size" not in parameters and tensors[0].shape[:1] != (job.micro_batch_size,):
        samples = tensors[0].shape[0] if tensors[0].dim() else 1
        raise ConfigError(
            f"{path}: the example holds {samples} samples, the job has {job.micro_batch_size};"
            f" let the function take micro_batch_size, or give {setting('micro_batch_size', samples)}"
        )
    if device != "meta":
        module = module.to(device)
    return Subject(module.to(DTYPES[job.dtype]), example if isinstance(example, Mapping) else tuple(example))
