"""PEFT's adapters and activation checkpointing on a model, and which part of the model a module belongs to."""

from __future__ import annotations

import re

import torch
from torch import nn

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images import ImageProcessor
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.first_line import first_line

SAVED = "modules_to_save."
"""Part of the paths of modules that PEFT trains in place of frozen ones."""


def with_adapters(
    module: nn.Module, job: Job, device: str, excluded: str | None = None, is_causal_lm: bool = True
) -> nn.Module:
    """The model with PEFT's LoRA or DoRA, except on modules that match `excluded`.

    Raises:
        ConfigError: if PEFT refuses.
    """
    from peft import LoraConfig, get_peft_model

    from_transformers = hasattr(module, "get_output_embeddings")
    targets: str | list[str] = "all-linear" if from_transformers else _linear_names(module)
    config = LoraConfig(
        r=job.lora_rank,
        lora_alpha=2 * job.lora_rank,
        target_modules=targets if job.lora_targets is None else list(job.lora_targets),
        lora_dropout=job.lora_dropout,
        modules_to_save=list(job.modules_to_save or ()) or None,
        exclude_modules=excluded,
        use_dora=job.method == "dora",
        task_type="CAUSAL_LM" if from_transformers and is_causal_lm else None,
    )
    try:
        with torch.device(device):
            adapted = get_peft_model(module, config, autocast_adapter_dtype=job.lora_dtype == "fp32")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"PEFT cannot put adapters on this model: {first_line(error)}") from error
    for path, parameter in adapted.named_parameters():  # on meta PEFT does not cast adapters to the base layer's dtype
        dtype = job.lora_dtype if "lora_" in path else job.saved_dtype if SAVED in path else None
        if dtype is not None:
            parameter.data = parameter.data.to(DTYPES[dtype])
    if device.startswith("cuda") and not job.is_mapped:
        _move_again([parameter for path, parameter in adapted.named_parameters() if "lora_" in path])
    return adapted


def _move_again(parameters: list[nn.Parameter]) -> None:
    """Move adapters to the host and back, so that no casts of PEFT's leave gaps between them, as in a moved model."""
    values = [(parameter.data.cpu(), parameter.device) for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.new_empty(0)
    torch.cuda.empty_cache()
    for parameter, (value, device) in zip(parameters, values, strict=True):
        parameter.data = value.to(device)


def _linear_names(module: nn.Module) -> list[str]:
    return [path for path, submodule in module.named_modules() if isinstance(submodule, nn.Linear)]


def checkpoint(module: nn.Module, job: Job, keep_rng: bool = False) -> None:
    """Enable activation checkpointing, as transformers' Trainer does; with adapters inputs require gradients.

    `keep_rng` is preserve_rng_state, PyTorch's default: the RNG state is copied to the host before each layer.

    Raises:
        ConfigError: if the model has no gradient_checkpointing_enable.
    """
    enable = getattr(module, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ConfigError(f"this model has no gradient_checkpointing_enable; use {setting('checkpointing', 'none')}")
    try:
        enable(gradient_checkpointing_kwargs={"use_reentrant": job.reentrant, "preserve_rng_state": keep_rng})
    except ValueError as error:
        raise ConfigError(f"{first_line(error)}; use {setting('checkpointing', 'none')}") from error
    if job.method != "full" and job.loss != "sections":  # torchtune's loop does without
        module.enable_input_require_grads()


# -- parts of a model --------------------------------------------------------------------------------------------------


def freeze(module: nn.Module, job: Job, processor: ImageProcessor) -> None:
    """Freeze the vision tower and the projector unless the job trains them; adapters are added later."""
    for path, parameter in module.named_parameters():
        part = part_of(bare(path), processor)
        if is_within(bare(path), processor.frozen) or (part is not None and getattr(job, part) != "train"):
            parameter.requires_grad_(False)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The model's own parameters by path, without adapters and PEFT's copies (modules_to_save)."""
    return {
        path: parameter for path, parameter in module.named_parameters() if "lora_" not in path and SAVED not in path
    }


def bare(path: str) -> str:
    """A module's path without PEFT's prefix."""
    return path.removeprefix("base_model.model.")


def part_of(path: str, processor: ImageProcessor) -> str | None:
    """The part that a module or parameter belongs to: vision, projector, or None for the language model."""
    if is_within(path, processor.projector):
        return "projector"
    return "vision" if is_within(path, (processor.tower,)) else None


def is_within(path: str, modules: tuple[str, ...]) -> bool:
    """Whether a path is one of the modules, or inside one."""
    return any(f"{path}.".startswith(f"{prefix}.") for prefix in modules)


def excluded_modules(job: Job, processor: ImageProcessor | None) -> str | None:
    """PEFT's exclude_modules, a regular expression of modules that get no adapter."""
    if processor is None:
        return None
    projectors = "|".join(re.escape(path) for path in processor.projector)
    patterns = []
    if job.vision != "lora":
        patterns.append(rf"(?!({projectors})\.){re.escape(processor.tower)}\..*")
    if job.projector != "lora":
        patterns.append(rf"({projectors})(\..*)?")
    patterns += [rf"{re.escape(path)}(\..*)?" for path in processor.frozen]
    return "|".join(patterns) or None
