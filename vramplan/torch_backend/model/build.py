"""The real model: transformers' class from a configuration, or what a user's own function returns; PEFT on it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError
from vramplan.inputs.images import IMAGE_PROCESSORS, ImageProcessor, ProcessedImage, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS, Input, check_inputs
from vramplan.inputs.model_spec import IMPORT_PATH, Config, ModelSpec
from vramplan.inputs.validation import check_spec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import losses

SAVED = "modules_to_save."
"""In the path of what PEFT trains in a frozen module's place."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images or videos of every sample, and how the model is told of them."""

    one: ProcessedImage
    per_sample: int
    token_id: int
    """What stands in the ids where a feature of them goes."""
    token_types: str
    """The input that tells the model which ids those are, if any does."""


@dataclass(frozen=True, slots=True)
class Fed:
    """What a model takes that is no causal language model."""

    inputs: tuple[Input, ...]
    arguments: Mapping[str, bool]
    """What it is called with besides tensors."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that can be stepped, and what it is fed."""

    module: nn.Module
    example: Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...] | None = None
    """Inputs of a user's own model for one micro-batch; None: a language model, fed with ids and labels."""
    vocabulary: int | None = None
    """Width of the logits, where known."""
    pictures: Pictures | None = None
    """The images of its samples."""
    fed: Fed | None = None
    """Its inputs, where it is no causal language model."""


Making = Callable[[], AbstractContextManager[Any]]


def build(
    spec: ModelSpec, job: Job, device: str, trust_remote_code: bool = False, making: Making = nullcontext
) -> Subject:
    """The model as it is trained: adapters on it, checkpointing switched on, in training mode; on `device`.

    `making` goes around the constructor of transformers' class: what divides its weights as they come.

    Raises:
        VramplanError: for an architecture that the installed transformers does not know, and all else that cannot be.
    """
    check_spec(spec)
    check_inputs(spec, job)
    if spec.model_type == IMPORT_PATH:
        subject = from_import_path(spec.name, job, device)
    else:
        subject = from_config(spec, job, device, trust_remote_code, making)
    module, eyes = subject.module, IMAGE_PROCESSORS.get(spec.model_type)
    if eyes is not None:
        freeze(module, job, eyes)
    if subject.fed is None:
        _check_positions(module, job, spec.name, eyes.tower if eyes else None)
    if job.method != "full":
        module = with_adapters(module, job, device, _left_alone(job, eyes), subject.fed is not None)
    if job.checkpointing == "full":
        checkpoint(module, job, keep_rng=device.startswith("cuda"))
    if job.loss == "liger" and device.startswith("cuda"):
        losses.use_liger(module, spec.name)
    elif job.loss != "standard":
        losses.use(module, job.loss, spec.name, device.startswith("cuda"))
    return replace(subject, module=module.train())


def settle(spec: ModelSpec, job: Job) -> Job:
    """The job with the attention that transformers runs for this architecture, where none was asked for."""
    if "attention" in job.model_fields_set or spec.model_type == IMPORT_PATH:
        return job
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if spec.model_type in MODEL_INPUTS:
        known = getattr(transformers, MODEL_INPUTS[spec.model_type].model_class)
    elif spec.model_type in CONFIG_MAPPING:
        known = MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[spec.model_type], None)
    else:
        return job
    return job.model_copy(update={"attention": "sdpa" if getattr(known, "_supports_sdpa", True) else "eager"})


# -- transformers ------------------------------------------------------------------------------------------------------


def from_config(spec: ModelSpec, job: Job, device: str, trust_remote_code: bool, making: Making) -> Subject:
    """Transformers' own class, without weights.

    Raises:
        VramplanError: where there is none, or it refuses the configuration.
    """
    import transformers

    config = _transformers_config(spec, trust_remote_code)
    attention = {"flash": "flash_attention_2"}.get(job.attention, job.attention)
    make = _class_for(spec, config, trust_remote_code)
    try:
        with torch.device(device), making():
            model = make(config, attn_implementation=attention, dtype=DTYPES[job.dtype])
    except (Exception, SystemExit) as error:  # model code of any origin
        if isinstance(error, VramplanError):
            raise
        first = _first_line(error)
        if "does not support" in first and "attention" in first:
            raise ConfigError(
                f"--attention {job.attention}: transformers {transformers.__version__} does not run {spec.model_type}"
                " so; use --attention eager"
            ) from error
        raise SpecError(f"{spec.name}: transformers {transformers.__version__} cannot build it: {first}") from error
    model.tie_weights()
    model.config.use_cache = False
    for path, one in model.named_modules() if job.fp32_norms else ():
        if isinstance(one, nn.LayerNorm) or "norm" in path:
            one.to(torch.float32)
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    return Subject(model, None, vocabulary, _pictures(spec, job, model.config), _fed(spec, job))


def _fed(spec: ModelSpec, job: Job) -> Fed | None:
    feed, config = MODEL_INPUTS.get(spec.model_type), Config(spec.config, spec.name)
    return None if feed is None else Fed(tuple(feed.inputs(config, job)), feed.called_with(config, job))


def _pictures(spec: ModelSpec, job: Job, config: Any) -> Pictures | None:
    one = processed_image(spec, job)
    if one is None or not job.pictures:
        return None
    token = getattr(config, one.token, None) or getattr(config.vision_config, one.token)
    return Pictures(one, job.pictures, token, IMAGE_PROCESSORS[spec.model_type].token_types)


def freeze(module: nn.Module, job: Job, eyes: ImageProcessor) -> None:
    """Freeze the tower and the projector where the job says so; adapters come later."""
    for path, one in module.named_parameters():
        part = part_of(bare(path), eyes)
        if part is not None and getattr(job, part) != "train":
            one.requires_grad_(False)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The model's own parameters: neither adapters nor the copies that PEFT trains in a module's place."""
    return {path: one for path, one in module.named_parameters() if "lora_" not in path and SAVED not in path}


def bare(path: str) -> str:
    """A module's path without what PEFT wraps around it."""
    return path.removeprefix("base_model.model.")


def part_of(path: str, eyes: ImageProcessor) -> str | None:
    """Vision or projector, for a module or parameter of either."""
    if any(f"{path}.".startswith(f"{one}.") for one in eyes.projector):
        return "projector"
    return "vision" if f"{path}.".startswith(f"{eyes.tower}.") else None


def _left_alone(job: Job, eyes: ImageProcessor | None) -> str | None:
    """Modules that get no adapter, as PEFT's regular expression."""
    if eyes is None:
        return None
    projectors = "|".join(re.escape(path) for path in eyes.projector)
    out = []
    if job.vision != "lora":
        out.append(rf"(?!({projectors})\.){re.escape(eyes.tower)}\..*")
    if job.projector != "lora":
        out.append(rf"({projectors})(\..*)?")
    return "|".join(out) or None


def _check_positions(module: nn.Module, job: Job, owner: str, tower: str | None) -> None:
    """Refuse sequences beyond a table of positions: a trace has no values, and would not see it.

    Raises:
        ConfigError: naming the table's size.
    """
    for path, one in module.named_modules():
        if tower is not None and path.startswith(tower):
            continue  # those of patches
        last = path.rpartition(".")[2]
        if isinstance(one, nn.Embedding) and (last == "wpe" or "pos" in last):
            size = one.num_embeddings - getattr(one, "offset", 0)
            if job.sequence_length > size:
                raise ConfigError(
                    f"--seq-len {job.sequence_length}: {owner} has a table of {size} positions;"
                    " longer sequences cannot run"
                )


def _transformers_config(spec: ModelSpec, trust_remote_code: bool) -> Any:
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = deepcopy(dict(spec.config))  # transformers writes into what is nested
    if spec.model_type in MODEL_INPUTS:
        settings = {**MODEL_INPUTS[spec.model_type].tokens, **settings}
    remote = settings.get("auto_map")
    if remote and spec.model_type not in CONFIG_MAPPING:
        if not trust_remote_code:
            raise UnsupportedError(
                f"{spec.name} brings its own code ({', '.join(sorted({str(v) for v in remote.values()}))});"
                " a trace would run it: add --trust-remote-code if you trust it"
            )
        try:
            return AutoConfig.from_pretrained(_folder(spec), trust_remote_code=True)
        except (Exception, SystemExit) as error:
            raise SpecError(f"{spec.name}: its code cannot be loaded: {_first_line(error)}") from error
    if spec.model_type not in CONFIG_MAPPING:
        by = settings.get("transformers_version")
        raise UnsupportedError(
            f"{spec.name}: transformers {transformers.__version__} does not know model_type {spec.model_type!r}"
            + ("; if it brings its own code, give the folder it was downloaded to" if spec.sources else "")
            + (f"; its config.json was written by transformers {by}: install that version or a later one" if by else "")
        )
    settings.pop("model_type", None)
    try:
        return AutoConfig.for_model(spec.model_type, **settings)
    except Exception as error:  # each configuration class checks its keys in its own way
        raise SpecError(f"{spec.name}: transformers refuses the configuration: {_first_line(error)}") from error


def _class_for(spec: ModelSpec, config: Any, trust_remote_code: bool) -> Any:
    """The class named in the configuration, else the causal language model of its type."""
    import transformers
    from transformers import AutoModelForCausalLM

    if trust_remote_code and spec.config.get("auto_map"):
        return lambda config, **more: AutoModelForCausalLM.from_config(config, trust_remote_code=True, **more)
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and spec.model_type in IMAGE_PROCESSORS:
        return transformers.AutoModelForImageTextToText.from_config
    if spec.model_type in MODEL_INPUTS:
        return getattr(transformers, MODEL_INPUTS[spec.model_type].model_class)._from_config
    for name in spec.config.get("architectures") or ():
        found = getattr(transformers, name, None)
        if found is not None and "labels" in inspect.signature(found.forward).parameters:
            return found._from_config
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedError(
            f"{spec.name}: transformers has no causal language model of type {spec.model_type!r},"
            " and config.json names no class with a loss of its own (architectures)"
        )
    return AutoModelForCausalLM.from_config


def _folder(spec: ModelSpec) -> str:
    path = Path(spec.name).expanduser()
    return str(path.parent if path.is_file() else path) if path.exists() else spec.name


def _first_line(error: BaseException) -> str:
    """What an error says first; two lines where the first only leads to the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


# -- a user's own model ------------------------------------------------------------------------------------------------


def from_import_path(path: str, job: Job, device: str) -> Subject:
    """What ``package.module:function`` returns: (nn.Module, example inputs).

    The function may take `micro_batch_size` and `sequence_length`, and is called with the job's; where it takes no
    batch, the job's must be the example's own. Inputs are a dictionary or a tuple of tensors; the model's output must
    hold a loss: a scalar, or `loss` in it.

    Raises:
        ConfigError: when there is no such function, or it returns something else.
    """
    name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(name), attribute)
        known = inspect.signature(function).parameters
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: cannot be imported ({_first_line(error)})") from error
    if job.attention != "sdpa":
        raise ConfigError(f"--attention {job.attention}: a model of your own chooses its attention itself")
    wanted = {"micro_batch_size": job.micro_batch_size, "sequence_length": job.sequence_length}
    try:
        with torch.device(device):
            returned = function(**{name: value for name, value in wanted.items() if name in known})
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: the function failed: {type(error).__name__}: {_first_line(error)}") from error
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], nn.Module)):
        raise ConfigError(f"{path}: expected (nn.Module, example inputs), got {type(returned).__name__}")
    module, example = returned
    if isinstance(example, torch.Tensor):
        example = (example,)
    tensors = list(example.values()) if isinstance(example, Mapping) else list(example)
    if not tensors or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise ConfigError(f"{path}: the example inputs must be tensors, in a dictionary or a tuple")
    if "micro_batch_size" not in known and tensors[0].shape[:1] != (job.micro_batch_size,):
        own = tensors[0].shape[0] if tensors[0].dim() else 1
        raise ConfigError(
            f"{path}: the example holds {own} samples, asked for {job.micro_batch_size};"
            f" let the function take micro_batch_size, or give --micro-batch {own}"
        )
    if device != "meta":
        module = module.to(device)
    return Subject(module.to(DTYPES[job.dtype]), example if isinstance(example, Mapping) else tuple(example))


# -- adapters, checkpointing -------------------------------------------------------------------------------------------


def with_adapters(
    module: nn.Module, job: Job, device: str, left_alone: str | None = None, fed: bool = False
) -> nn.Module:
    """PEFT's LoRA or DoRA on the model, but for modules that match `left_alone`; `fed`: no causal language model.

    Raises:
        ConfigError: where PEFT refuses.
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
        exclude_modules=left_alone,
        use_dora=job.method == "dora",
        task_type="CAUSAL_LM" if from_transformers and not fed else None,
    )
    try:
        with torch.device(device):
            adapted = get_peft_model(module, config, autocast_adapter_dtype=job.lora_dtype == "fp32")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"PEFT cannot put adapters on this model: {_first_line(error)}") from error
    for path, parameter in adapted.named_parameters():  # on meta PEFT leaves out the move to the base layer's dtype
        dtype = job.lora_dtype if "lora_" in path else job.saved_dtype if SAVED in path else None
        if dtype is not None:
            parameter.data = parameter.data.to(DTYPES[dtype])
    return adapted


def _linear_names(module: nn.Module) -> list[str]:
    return [path for path, one in module.named_modules() if isinstance(one, nn.Linear)]


def checkpoint(module: nn.Module, job: Job, keep_rng: bool = False) -> None:
    """Switch on activation checkpointing, as transformers' Trainer does; inputs need gradients under adapters.

    `keep_rng`, torch's default: the state of the random numbers is copied to the host before each layer.

    Raises:
        ConfigError: for a model that has no switch.
    """
    switch = getattr(module, "gradient_checkpointing_enable", None)
    if switch is None:
        raise ConfigError("this model has no gradient_checkpointing_enable; use --checkpointing none")
    try:
        switch(gradient_checkpointing_kwargs={"use_reentrant": job.reentrant, "preserve_rng_state": keep_rng})
    except ValueError as error:
        raise ConfigError(f"{_first_line(error)}; use --checkpointing none") from error
    if job.method != "full":
        module.enable_input_require_grads()
