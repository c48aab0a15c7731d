"""Build the real model: transformers' class or a user's own function, then PEFT's adapters and checkpointing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vramplan.bounded_read import expand_home
from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError, setting
from vramplan.inputs.embedding import is_embedding_gemma
from vramplan.inputs.images import IMAGE_PROCESSORS, TOWER_MODULES, processed_image
from vramplan.inputs.images.sounds import HEARD
from vramplan.inputs.input_checks import check_inputs
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS, ModelInputs, inputs_of
from vramplan.inputs.model_spec import IMPORT_PATH, Config, ModelSpec
from vramplan.inputs.sequence_length import check_sequence_length
from vramplan.inputs.tasks import head_of, num_labels
from vramplan.inputs.validation import check_spec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.first_line import first_line
from vramplan.torch_backend.model import losses, mapped, trl_loss
from vramplan.torch_backend.model.adapters import checkpoint, excluded_modules, freeze, with_adapters
from vramplan.torch_backend.model.own_model import from_import_path
from vramplan.torch_backend.model.stated_size import check_size
from vramplan.torch_backend.model.subject import ImageInputs, InputSpec, Subject
from vramplan.torch_backend.out_of_memory import is_out_of_memory

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
    module, processor = subject.module, TOWER_MODULES.get(spec.model_type)
    if processor is not None:
        freeze(module, job, processor)
    if job.freeze_feature_encoder and hasattr(module, "freeze_feature_encoder"):
        module.freeze_feature_encoder()
    if subject.model_inputs is None:
        _check_positions(module, job, spec.name, processor.tower if processor else None)
    if job.method != "full":
        module = with_adapters(module, job, device, excluded_modules(job, processor), subject.model_inputs is None)
    if job.checkpointing == "full":
        checkpoint(module, job, keep_rng=device.startswith("cuda"))
    if job.fused_kernels or job.loss == "liger_cross_entropy" or (job.loss == "liger" and device.startswith("cuda")):
        losses.use_liger(module, job, spec.name, device.startswith("cuda"))
    elif job.loss == "chunked" and device.startswith("cuda"):
        trl_loss.use(module, spec.name)
    elif job.loss != "standard":
        losses.use(module, job.loss, spec.name, device.startswith("cuda"), job.verl.logits)
    if job.task == "embedding":
        from vramplan.torch_backend.model.sentence_loss import SentenceLoss

        device_type = "cuda" if device.startswith("cuda") else "cpu"
        has_dense = is_embedding_gemma(spec.model_type, Config(spec.config, spec.name))
        module = SentenceLoss(module, job, spec.model_type in MODEL_INPUTS or has_dense, has_dense, device_type)
        subject = replace(subject, casts_itself=True)
    return replace(subject, module=module.train())


def settle(spec: ModelSpec, job: Job) -> Job:
    """The job with the attention that transformers chooses for this architecture, if the job sets none."""
    if "attention" in job.model_fields_set or spec.model_type == IMPORT_PATH:
        return job
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    samples = inputs_of(spec.model_type, job.task, spec.name)
    if samples is not None:
        model_class = _named(samples)
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

    config = _transformers_config(spec, job, trust_remote_code)
    usual: str = {"flash": "flash_attention_2"}.get(job.attention, job.attention)
    attention: str | dict[str, str] = usual
    hears = spec.model_type in HEARD
    if (
        getattr(config, "audio_config", None) is not None and not hears
    ):  # Gemma 4's tower for sound has eager attention alone
        attention = {"": usual, **dict.fromkeys(config.sub_configs, usual), "audio_config": "eager"}
    model_class = _class_for(spec, job, config, trust_remote_code)

    def constructed() -> Any:
        return model_class(config, attn_implementation=attention, dtype=DTYPES[job.dtype])

    try:
        if job.is_mapped and device.startswith("cuda"):
            model = mapped.load(constructed, spec, job, device)
        else:
            with torch.device(device), constructor_context():
                model = constructed()
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
    if hears and job.dtype != "fp32":  # as from_pretrained loads them (modeling_utils.py)
        for path, submodule in model.named_modules():
            if path.rpartition(".")[2] in model._keep_in_fp32_modules_strict:
                submodule.to(torch.float32)
    model.config.use_cache = job.keeps_outputs and job.checkpointing == "none" and not job.joins_samples
    for path, submodule in model.named_modules() if job.fp32_norms else ():
        if isinstance(submodule, nn.LayerNorm) or "norm" in path:
            submodule.to(torch.float32)
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    return Subject(model, None, vocabulary, _image_inputs(spec, job, model.config), _input_spec(spec, job))


def _input_spec(spec: ModelSpec, job: Job) -> InputSpec | None:
    inputs, config = inputs_of(spec.model_type, job.task, spec.name), Config(spec.config, spec.name)
    return None if inputs is None else InputSpec(tuple(inputs.inputs(config, job)), inputs.called_with(config, job))


def _image_inputs(spec: ModelSpec, job: Job, config: Any) -> ImageInputs | None:
    processed = processed_image(spec, job)
    if processed is None or not job.pictures:
        return None
    token = getattr(config, processed.token, None) or getattr(config.vision_config, processed.token)
    return ImageInputs(processed, job.pictures, token, TOWER_MODULES[spec.model_type].token_types)


def _check_positions(module: nn.Module, job: Job, owner: str, tower: str | None) -> None:
    """Refuse sequences longer than a table of position embeddings: a trace has no values and would not fail.

    Raises:
        ConfigError: naming the table's size.
    """
    vision = getattr(getattr(module, "config", None), "vision_config", None)
    for path, submodule in module.named_modules():
        if vision is not None and type(getattr(submodule, "config", None)) is type(vision):
            tower = tower or path  # of a model whose images are not modelled
        if tower is not None and path.startswith(tower):
            continue  # positions of patches
        name = path.rpartition(".")[2]
        if isinstance(submodule, nn.Embedding) and (name == "wpe" or "pos" in name):
            size = submodule.num_embeddings - getattr(submodule, "offset", 0)
            check_sequence_length(job.sequence_length, size, owner)


def _transformers_config(spec: ModelSpec, job: Job, trust_remote_code: bool) -> Any:
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = deepcopy(dict(spec.config))  # transformers writes into nested dictionaries
    samples = inputs_of(spec.model_type, job.task, spec.name)
    if samples is not None:
        settings |= {key: value for key, value in samples.tokens.items() if settings.get(key) is None}
        settings |= samples.fixed
    if head_of(spec.model_type, job.task):
        settings = {key: value for key, value in settings.items() if key not in ("id2label", "label2id")}
        settings["num_labels"] = labels = num_labels(Config(spec.config, spec.name), job)
        settings["problem_type"] = "regression" if labels == 1 else "single_label_classification"  # what labels tell
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
        config = AutoConfig.for_model(spec.model_type, **settings)
    except Exception as error:  # each configuration class checks its keys in its own way
        raise SpecError(f"{spec.name}: transformers refuses the configuration: {first_line(error)}") from error
    check_size(settings, config, spec.name)
    return config


def _without(settings: Any, keys: frozenset[str]) -> Any:
    """Settings without these keys, in nested ones too."""
    if isinstance(settings, dict):
        return {name: _without(value, keys) for name, value in settings.items() if name not in keys}
    return [_without(value, keys) for value in settings] if isinstance(settings, list) else settings


def _class_for(spec: ModelSpec, job: Job, config: Any, trust_remote_code: bool) -> Any:
    """The constructor of the class named in the configuration, or else of the causal language model of its type."""
    import transformers
    from transformers import AutoModelForCausalLM

    if trust_remote_code and spec.config.get("auto_map"):
        return lambda config, **options: AutoModelForCausalLM.from_config(config, trust_remote_code=True, **options)
    if spec.model_type in HEARD:
        return transformers.AutoModelForMultimodalLM.from_config
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and spec.model_type in IMAGE_PROCESSORS:
        return transformers.AutoModelForImageTextToText.from_config
    samples = inputs_of(spec.model_type, job.task, spec.name)
    if samples is not None:
        return _named(samples)._from_config
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


def _named(samples: ModelInputs) -> Any:
    """The class that is trained."""
    import transformers

    if samples.adds_head:
        from vramplan.torch_backend.model.image_classifier import classifier_on

        return classifier_on(samples.model_class)
    return getattr(transformers, samples.model_class)


def _folder(spec: ModelSpec) -> str:
    path = expand_home(spec.name)
    return str(path.parent if path.is_file() else path) if path.exists() else spec.name
