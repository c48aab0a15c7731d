"""Check a Trainer's run before its first step, from inside the training script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vramplan.analytic.architectures.lookup import peft_experts_of
from vramplan.analytic.layers import moe_peft
from vramplan.analytic.layers.modules import is_norm
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError, VramplanError, setting
from vramplan.frameworks.parsed_config import ParsedConfig, at_least
from vramplan.frameworks.readers.trainer_arguments import (
    ATTENTION,
    DTYPES,
    NAMES,
    checkpoints_outside,
    device_map_field,
    reentrant_fields,
    trainer_fields,
)
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue, Note
from vramplan.inputs.images import TOWER_MODULES
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.judge import judge
from vramplan.planner.verdict import Verdict
from vramplan.units import format_bytes

try:
    from transformers import TrainerCallback
except ImportError:  # the public names still exist, and report what is missing
    TrainerCallback = object

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainingArguments

MAX_SAMPLES = 2000
"""Samples read to find the longest, if no length is given."""
DEVICE_ARGUMENTS = ("use_cpu", "no_cuda", "use_mps_device")
"""Arguments that say where this process runs, not for which GPU the answer is."""


class DoesNotFit(VramplanError):
    """Raised to stop a run before its first step; `verdict` is the full answer."""

    def __init__(self, verdict: Verdict) -> None:
        estimate = verdict.estimate
        need, capacity = (format_bytes(size) for size in (verdict.need_bytes, estimate.capacity_bytes))
        super().__init__(
            f"{estimate.model} needs {need} of the {capacity} that {verdict.card.title} gives this process;"
            f" micro-batch {estimate.micro_batch_size}, peak in {estimate.peak_phase}"
        )
        self.verdict = verdict


def preflight(trainer_or_args: Any, model: nn.Module | None = None, gpu: str = "auto", **settings: Any) -> Verdict:
    """Whether a Trainer's run fits the GPU; `settings` as in :func:`vramplan.check` (sequence_length, images ...).

    Raises:
        VramplanError: if a setting is not modelled, or no sequence length is known.
    """
    try:
        from transformers import TrainingArguments
    except ImportError as error:
        raise MissingDependencyError('preflight needs transformers: pip install "vramplan[probe]"') from error
    args = getattr(trainer_or_args, "args", trainer_or_args)
    model = model if model is not None else getattr(trainer_or_args, "model", None)
    if not isinstance(args, TrainingArguments) or model is None:
        raise ConfigError("preflight takes a Trainer, or TrainingArguments and a model")
    length = settings.pop("sequence_length", None) or getattr(args, "max_length", None)
    if length is None:
        length = longest(getattr(trainer_or_args, "train_dataset", None))
    config = read(args, model)
    verdict = judge(config, spec_of(model), gpu, sequence_length=length, **settings)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    estimated = verdict.estimate.num_trainable_parameters
    if trained != estimated:
        config.notes.append(
            Note("warning", "", f"{trained:,} parameters of this model train, the estimate counts {estimated:,}")
        )
    return verdict


class Preflight(TrainerCallback):  # type: ignore[misc]
    """Stops a run that does not fit before its first step: ``Trainer(..., callbacks=[Preflight()])``."""

    def __init__(self, gpu: str = "auto", **settings: Any) -> None:
        self.gpu, self.settings = gpu, settings

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the run, print the report of `vramplan check`, and stop the run if it does not fit.

        Raises:
            DoesNotFit: if it does not fit.
        """
        settings = dict(self.settings)
        loader = kwargs.get("train_dataloader")
        if "sequence_length" not in settings and getattr(args, "max_length", None) is None:
            settings["sequence_length"] = longest(getattr(loader, "dataset", None))
        verdict = preflight(args, kwargs["model"], self.gpu, **settings)
        if state.is_world_process_zero:
            from vramplan.render import check as render
            from vramplan.render import terminal

            terminal.print_all(render.answer(verdict))
        if not verdict.fits:
            raise DoesNotFit(verdict)


def longest(dataset: Any) -> int:
    """Tokens of the longest of the first :data:`MAX_SAMPLES` samples of a data set.

    Raises:
        ConfigError: if they have no input_ids.
    """
    lengths = []
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        for sample in (dataset[number] for number in range(min(MAX_SAMPLES, len(dataset)))):
            ids = sample.get("input_ids") if isinstance(sample, Mapping) else None
            if ids is not None:
                lengths.append(len(ids))
    if not lengths:
        raise ConfigError(f"the length of the longest sample is not known; give {setting('sequence_length')}")
    return max(lengths)


def spec_of(model: nn.Module) -> ModelSpec:
    """The model's transformers configuration as a ModelSpec."""
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = json.loads(json.dumps(inner.config.to_dict(), default=str))
    config.pop("quantization_config", None)  # quantization is read from the weights
    name = config.get("_name_or_path") or type(inner).__name__
    return ModelSpec(name=name, model_type=inner.config.model_type, config=config)


def read(args: TrainingArguments, model: nn.Module) -> ParsedConfig:
    """The job: batch and optimizer from the arguments; dtypes, adapters and trained parts from the model itself.

    Raises:
        UnsupportedError: if a setting is not modelled.
    """
    values = {name: value for name, value in args.to_dict().items() if name not in DEVICE_ARGUMENTS}
    reader = ConfigReader(
        ConfigSource({name: ConfigValue(value, f"TrainingArguments({name}=...)") for name, value in values.items()}),
        "transformers",
    )
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    device_map = getattr(inner, "hf_device_map", None) or {}
    gpus = {device for device in device_map.values() if device not in ("cpu", "disk")}
    if len(gpus) > 1:
        raise UnsupportedError(f"hf_device_map: a model on {len(gpus)} GPUs is not checked yet")
    job = trainer_fields(reader) | _of_model(model)
    job |= {"num_gpus": args.world_size} | (device_map_field(job) if gpus else {})
    job["autocast"] = "bf16" if args.bf16 else "fp16" if args.fp16 else "none"
    checkpointing = getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")  # since transformers 5, before
    checkpointing = checkpointing or next(  # PEFT enables it too
        (getattr(model, name) for name in names if hasattr(model, name)), False
    )
    job["checkpointing"] = "full" if checkpointing else "none"
    installed = version("transformers")
    # the default of use_reentrant is in modeling_utils.py
    job |= reentrant_fields(reader, job, not at_least(installed, "5.0"), checkpoints_outside(installed))
    config = ParsedConfig("transformers", f"{installed} (installed)", "", job, NAMES, [])
    if str(args.eval_strategy.value) != "no":
        config.eval_batch_size = args.per_device_eval_batch_size
    return config


def _of_model(model: nn.Module) -> dict[str, Any]:
    from vramplan.torch_backend.model.adapters import SAVED, bare, own_parameters, part_of

    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    weights = dict(model.named_parameters())
    stored = {path: _dtype(weight) for path, weight in own_parameters(model).items() if weight.is_floating_point()}
    adapters = [weight for path, weight in weights.items() if "lora_" in path]
    job: dict[str, Any] = {"method": "lora" if adapters else "full", **_dtypes(model, stored)}
    attention = inner.config._attn_implementation
    job["attention"] = ATTENTION.get(attention, attention)
    if adapters:
        job |= _of_adapters(model, _one_dtype("adapters", adapters))
    copies = [weight for path, weight in weights.items() if SAVED in path]
    if copies:
        job["saved_dtype"] = _one_dtype("modules_to_save", copies)
    processor = TOWER_MODULES.get(inner.config.model_type)
    for path, weight in weights.items() if processor is not None else ():
        part = part_of(bare(path), processor) if weight.requires_grad else None  # type: ignore[arg-type]
        if part is not None:
            job[part] = "lora" if adapters else "train"
    return job


def _dtype(tensor: Any) -> str:
    return DTYPES[str(tensor.dtype)]


def _one_dtype(what: str, tensors: list[Any]) -> str:
    dtypes = {_dtype(tensor) for tensor in tensors}
    if len(dtypes) > 1:
        raise UnsupportedError(f"PEFT: {what} in {' and '.join(sorted(dtypes))} at once are not modelled yet")
    return dtypes.pop()


def _dtypes(model: Any, stored: dict[str, str]) -> dict[str, Any]:
    """Job settings of the weights' dtypes and quantization; `stored` has the dtypes of floating-point weights by path.

    Raises:
        UnsupportedError: if the quantization is not modelled.
    """
    norms = {dtype for path, dtype in stored.items() if is_norm(path)}
    rest = {dtype for path, dtype in stored.items() if not is_norm(path)}
    first = next(dtype for path, dtype in stored.items() if not is_norm(path))
    fp32_norms = {"fp32_norms": True} if norms == {"fp32"} and rest == {first} != norms else {}
    layers = [module for module in model.modules() if type(module).__name__ in ("Linear4bit", "Linear8bitLt")]
    layers = [layer for layer in layers if not hasattr(layer, "base_layer")]  # PEFT's have the same names
    if not layers:
        return {"dtype": first, **fp32_norms}
    job: dict[str, Any] = (
        {"prepare_for_kbit_training": True} if norms | rest == {"fp32"} else {"dtype": first, **fp32_norms}
    )
    if type(layers[0]).__name__ == "Linear8bitLt":
        if not layers[0].state.threshold:
            raise UnsupportedError("bitsandbytes: llm_int8_threshold 0 is not modelled yet")
        return {"dtype": first, **job, "quantize": "int8"}
    compute_dtype = DTYPES[str(layers[0].compute_dtype)]
    if compute_dtype == "fp32":
        raise UnsupportedError("bitsandbytes: bnb_4bit_compute_dtype torch.float32 is not modelled yet")
    return {**job, "dtype": compute_dtype, "quantize": "nf4", "double_quant": layers[0].weight.compress_statistics}


def _of_adapters(model: Any, dtype: str) -> dict[str, Any]:
    (config,) = model.peft_config.values() if len(model.peft_config) == 1 else (None,)
    if config is None or config.peft_type != "LORA":
        raise UnsupportedError("PEFT: one LoRA adapter is modelled; this model has others")
    if config.bias != "none":
        raise UnsupportedError("PEFT: trained biases are not modelled yet")
    for name in ("layers_to_transform", "layer_replication", "trainable_token_indices"):
        if getattr(config, name, None) not in (None, [], {}):
            raise UnsupportedError(f"PEFT: {name} is not modelled yet")
    targets = [config.target_modules] if isinstance(config.target_modules, str) else list(config.target_modules or ())
    target_parameters = set(getattr(config, "target_parameters", None) or ())
    former = moe_peft.FORMER[peft_experts_of(spec_of(model))]
    doubled = any(moe_peft.DOUBLED in pattern for pattern in config.rank_pattern) == (
        moe_peft.DOUBLED in target_parameters
    )
    if not target_parameters <= set(former.values()) or not doubled:
        raise UnsupportedError(f"PEFT: target_parameters {', '.join(sorted(target_parameters))} are not modelled")
    targets += [name for name, parameter in former.items() if parameter in target_parameters]
    saved = {"modules_to_save": tuple(sorted(config.modules_to_save))} if config.modules_to_save else {}
    return saved | {
        "method": "dora" if config.use_dora else "lora",
        "lora_rank": config.r,
        "lora_dropout": config.lora_dropout,
        "lora_targets": tuple(sorted({target.rpartition(".")[2] for target in targets})),
        "lora_dtype": dtype,
    }
