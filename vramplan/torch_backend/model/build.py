"""Build the real model: transformers' class or a user's own function, then PEFT's adapters and checkpointing."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vramplan.bounded_read import expand_home
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError, setting
from vramplan.inputs.images import IMAGE_PROCESSORS, ProcessedImage, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS, Input, check_inputs
from vramplan.inputs.model_spec import IMPORT_PATH, Config, ModelSpec
from vramplan.inputs.sequence_length import check_sequence_length
from vramplan.inputs.validation import check_spec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.first_line import first_line
from vramplan.torch_backend.model import losses
from vramplan.torch_backend.model.adapters import checkpoint, excluded_modules, freeze, with_adapters
from vramplan.torch_backend.out_of_memory import is_out_of_memory


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The images or videos of every sample, and their tokens in the text."""

    processed: ProcessedImage
    per_sample: int
    token_id: int
    """The id in input_ids that an image feature replaces."""
    token_types: str
    """Name of the input that marks these ids, such as token_type_ids; "" for none."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Inputs of a model other than a causal language model."""

    inputs: tuple[Input, ...]
    arguments: Mapping[str, bool]
    """Keyword arguments of forward() that are not tensors."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to train, and its inputs."""

    module: nn.Module
    example: Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...] | None = None
    """Inputs of a user's own model for one micro-batch; None for a model of transformers."""
    vocabulary: int | None = None
    """Width of the logits, if known."""
    images: ImageInputs | None = None
    """Images or videos of the samples of a vision-language model."""
    model_inputs: InputSpec | None = None
    """Inputs of a model other than a causal language model."""


CHOOSES_CODE = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "use_pretrained_backbone",
    }
)
"""Keys by which a configuration would name a kernel or weights on the Hub: transformers would fetch and run them
(transformers 5.23, configuration_utils.py and integrations/hub_kernels.py; backbone_utils.py before 5)."""

ConstructorContext = Callable[[], AbstractContextManager[Any]]
"""A context around a model's constructor, such as DeepSpeed's, which shards weights as they are created."""


def build(
    spec: ModelSpec,
    job: Job,
    device: str,
    trust_remote_code: bool = False,
    constructor_context: ConstructorContext = nullcontext,
) -> Subject:
    """The model as it is trained, on `device`: with adapters, checkpointing and loss, in training mode.

    Raises:
        VramplanError: if it cannot be built, such as an architecture that the installed transformers does not know.
    """
    check_spec(spec)
    check_inputs(spec, job)
    if spec.model_type == IMPORT_PATH:
        subject = from_import_path(spec.name, job, device)
    else:
        subject = from_config(spec, job, device, trust_remote_code, constructor_context)
    module, processor = subject.module, IMAGE_PROCESSORS.get(spec.model_type)
    if processor is not None:
        freeze(module, job, processor)
    if subject.model_inputs is None:
        _check_positions(module, job, spec.name, processor.tower if processor else None)
    if job.method != "full":
        module = with_adapters(module, job, device, excluded_modules(job, processor), subject.model_inputs is None)
    if job.checkpointing == "full":
        checkpoint(module, job, keep_rng=device.startswith("cuda"))
    if job.loss == "liger" and device.startswith("cuda"):
        losses.use_liger(module, spec.name)
    elif job.loss != "standard":
        losses.use(module, job.loss, spec.name, device.startswith("cuda"))
    return replace(subject, module=module.train())


def settle(spec: ModelSpec, job: Job) -> Job:
    """The job with the attention that transformers chooses for this architecture, if the job sets none."""
    if "attention" in job.model_fields_set or spec.model_type == IMPORT_PATH:
        return job
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if spec.model_type in MODEL_INPUTS:
        model_class = getattr(transformers, MODEL_INPUTS[spec.model_type].model_class)
    elif spec.model_type in CONFIG_MAPPING:
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[spec.model_type], None)
    else:
        return job
    return job.model_copy(update={"attention": "sdpa" if getattr(model_class, "_supports_sdpa", True) else "eager"})


# -- transformers ------------------------------------------------------------------------------------------------------


def from_config(
    spec: ModelSpec, job: Job, device: str, trust_remote_code: bool, constructor_context: ConstructorContext
) -> Subject:
    """A model of transformers' class, without pretrained weights.

    Raises:
        VramplanError: if there is no such class, or it refuses the configuration.
    """
    import transformers

    config = _transformers_config(spec, trust_remote_code)
    attention = {"flash": "flash_attention_2"}.get(job.attention, job.attention)
    model_class = _class_for(spec, config, trust_remote_code)
    try:
        with torch.device(device), constructor_context():
            model = model_class(config, attn_implementation=attention, dtype=DTYPES[job.dtype])
    except (Exception, SystemExit) as error:  # model code of any origin
        if isinstance(error, VramplanError) or is_out_of_memory(error):
            raise
        first = first_line(error)
        if "does not support" in first and "attention" in first:
            raise ConfigError(
                f"{setting('attention', job.attention)}: transformers {transformers.__version__} does not run"
                f" {spec.model_type} so; use {setting('attention', 'eager')}"
            ) from error
        raise SpecError(f"{spec.name}: transformers {transformers.__version__} cannot build it: {first}") from error
    model.tie_weights()
    model.config.use_cache = False
    for path, submodule in model.named_modules() if job.fp32_norms else ():
        if isinstance(submodule, nn.LayerNorm) or "norm" in path:
            submodule.to(torch.float32)
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    return Subject(model, None, vocabulary, _image_inputs(spec, job, model.config), _input_spec(spec, job))


def _input_spec(spec: ModelSpec, job: Job) -> InputSpec | None:
    inputs, config = MODEL_INPUTS.get(spec.model_type), Config(spec.config, spec.name)
    return None if inputs is None else InputSpec(tuple(inputs.inputs(config, job)), inputs.called_with(config, job))


def _image_inputs(spec: ModelSpec, job: Job, config: Any) -> ImageInputs | None:
    processed = processed_image(spec, job)
    if processed is None or not job.pictures:
        return None
    token = getattr(config, processed.token, None) or getattr(config.vision_config, processed.token)
    return ImageInputs(processed, job.pictures, token, IMAGE_PROCESSORS[spec.model_type].token_types)


def _check_positions(module: nn.Module, job: Job, owner: str, tower: str | None) -> None:
    """Refuse sequences longer than a table of position embeddings: a trace has no values and would not fail.

    Raises:
        ConfigError: naming the table's size.
    """
    for path, submodule in module.named_modules():
        if tower is not None and path.startswith(tower):
            continue  # positions of patches
        name = path.rpartition(".")[2]
        if isinstance(submodule, nn.Embedding) and (name == "wpe" or "pos" in name):
            size = submodule.num_embeddings - getattr(submodule, "offset", 0)
            check_sequence_length(job.sequence_length, size, owner)


def _transformers_config(spec: ModelSpec, trust_remote_code: bool) -> Any:
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = deepcopy(dict(spec.config))  # transformers writes into nested dictionaries
    if spec.model_type in MODEL_INPUTS:
        settings = {**MODEL_INPUTS[spec.model_type].tokens, **settings}
    remote = settings.get("auto_map")
    if remote and spec.model_type not in CONFIG_MAPPING:
        if not trust_remote_code:
            raise UnsupportedError(
                f"{spec.name} brings its own code ({', '.join(sorted({str(v) for v in remote.values()}))});"
                f" a trace would run it: add {setting('trust_remote_code')} if you trust it"
            )
        try:
            return AutoConfig.from_pretrained(_folder(spec), trust_remote_code=True)
        except (Exception, SystemExit) as error:
            raise SpecError(f"{spec.name}: its code cannot be loaded: {first_line(error)}") from error
    if spec.model_type not in CONFIG_MAPPING:
        written_by = settings.get("transformers_version")
        raise UnsupportedError(
            f"{spec.name}: transformers {transformers.__version__} does not know model_type {spec.model_type!r}"
            + ("; if it brings its own code, give the folder it was downloaded to" if spec.sources else "")
            + (
                f"; its config.json was written by transformers {written_by}: install that version or a later one"
                if written_by
                else ""
            )
        )
    settings.pop("model_type", None)
    settings = _without(settings, CHOOSES_CODE)
    try:
        return AutoConfig.for_model(spec.model_type, **settings)
    except Exception as error:  # each configuration class checks its keys in its own way
        raise SpecError(f"{spec.name}: transformers refuses the configuration: {first_line(error)}") from error


def _without(settings: Any, keys: frozenset[str]) -> Any:
    """Settings without these keys, in nested ones too."""
    if isinstance(settings, dict):
        return {name: _without(value, keys) for name, value in settings.items() if name not in keys}
    return [_without(value, keys) for value in settings] if isinstance(settings, list) else settings


def _class_for(spec: ModelSpec, config: Any, trust_remote_code: bool) -> Any:
    """The constructor of the class named in the configuration, or else of the causal language model of its type."""
    import transformers
    from transformers import AutoModelForCausalLM

    if trust_remote_code and spec.config.get("auto_map"):
        return lambda config, **options: AutoModelForCausalLM.from_config(config, trust_remote_code=True, **options)
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and spec.model_type in IMAGE_PROCESSORS:
        return transformers.AutoModelForImageTextToText.from_config
    if spec.model_type in MODEL_INPUTS:
        return getattr(transformers, MODEL_INPUTS[spec.model_type].model_class)._from_config
    for name in spec.config.get("architectures") or ():
        model_class: Any = getattr(transformers, name, None) if isinstance(name, str) else None
        is_model = inspect.isclass(model_class) and issubclass(model_class, nn.Module)
        if is_model and "labels" in inspect.signature(model_class.forward).parameters:
            return model_class._from_config
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedError(
            f"{spec.name}: transformers has no causal language model of type {spec.model_type!r},"
            " and config.json names no class with a loss of its own (architectures)"
        )
    return AutoModelForCausalLM.from_config


def _folder(spec: ModelSpec) -> str:
    path = expand_home(spec.name)
    return str(path.parent if path.is_file() else path) if path.exists() else spec.name


# -- a user's own model ------------------------------------------------------------------------------------------------


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
