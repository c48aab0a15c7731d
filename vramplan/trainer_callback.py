"""The same check from inside a training script: a Trainer, or its arguments and model, before the first step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vramplan.analytic.architectures.lookup import peft_experts_of
from vramplan.analytic.layers import moe_peft
from vramplan.analytic.layers.modules import is_norm
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError, VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig, at_least
from vramplan.frameworks.readers.transformers_trainer import (
    ATTENTION,
    DTYPES,
    NAMES,
    arguments,
    checkpoints_outside,
    mapped,
    reentrant,
)
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue, Note
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.check import Verdict, judge
from vramplan.units import format_bytes

try:
    from transformers import TrainerCallback
except ImportError:  # the names are there all the same, and say what is missing
    TrainerCallback = object

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainingArguments

SAMPLES = 2000
"""Looked at for the longest, where the length is not said."""
HERE = ("use_cpu", "no_cuda", "use_mps_device")
"""Arguments that say where this process runs, not on which card the answer is for."""


class DoesNotFit(VramplanError):
    """A run that was stopped before its first step; `verdict` holds the whole answer."""

    def __init__(self, verdict: Verdict) -> None:
        one = verdict.estimate
        need, room = (format_bytes(size) for size in (verdict.need_bytes, one.capacity_bytes))
        super().__init__(
            f"{one.model} needs {need} of the {room} that {verdict.card.title} gives this process;"
            f" micro-batch {one.micro_batch_size}, peak in {one.peak_phase}"
        )
        self.verdict = verdict


def preflight(trainer_or_args: Any, model: nn.Module | None = None, gpu: str = "auto", **given: Any) -> Verdict:
    """Whether a Trainer's run fits the card; `given` as in :func:`vramplan.check` (sequence_length, images ...).

    Raises:
        VramplanError: for what is not modelled, or a length that nothing tells.
    """
    try:
        from transformers import TrainingArguments
    except ImportError as error:
        raise MissingDependencyError('preflight needs transformers: pip install "vramplan[probe]"') from error
    args = getattr(trainer_or_args, "args", trainer_or_args)
    model = model if model is not None else getattr(trainer_or_args, "model", None)
    if not isinstance(args, TrainingArguments) or model is None:
        raise ConfigError("preflight takes a Trainer, or TrainingArguments and a model")
    length = given.pop("sequence_length", None) or getattr(args, "max_length", None)
    if length is None:
        length = longest(getattr(trainer_or_args, "train_dataset", None))
    reading = read(args, model)
    found = judge(reading, spec_of(model), gpu, sequence_length=length, **given)
    train = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if train != found.estimate.num_trainable_parameters:
        counted = found.estimate.num_trainable_parameters
        reading.notes.append(
            Note("warning", "", f"{train:,} parameters of this model train, the estimate counts {counted:,}")
        )
    return found


class Preflight(TrainerCallback):  # type: ignore[misc]
    """Stops a run that will not fit, before its first step: ``Trainer(..., callbacks=[Preflight()])``."""

    def __init__(self, gpu: str = "auto", **given: Any) -> None:
        self.gpu, self.given = gpu, given

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Check, report, and stop what does not fit.

        Raises:
            DoesNotFit: with the same report as `vramplan check`.
        """
        given = dict(self.given)
        loader = kwargs.get("train_dataloader")
        if "sequence_length" not in given and getattr(args, "max_length", None) is None:
            given["sequence_length"] = longest(getattr(loader, "dataset", None))
        found = preflight(args, kwargs["model"], self.gpu, **given)
        if state.is_world_process_zero:
            from vramplan.render import check as shown
            from vramplan.render import terminal

            terminal.print_all(shown.verdict(found))
        if not found.fits:
            raise DoesNotFit(found)


def longest(dataset: Any) -> int:
    """Tokens of the longest of a data set's first samples.

    Raises:
        ConfigError: where they do not tell.
    """
    lengths = []
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        for sample in (dataset[number] for number in range(min(SAMPLES, len(dataset)))):
            ids = sample.get("input_ids") if isinstance(sample, Mapping) else None
            if ids is not None:
                lengths.append(len(ids))
    if not lengths:
        raise ConfigError("nothing tells how long the longest sample is; give sequence_length")
    return max(lengths)


def spec_of(model: nn.Module) -> ModelSpec:
    """The model's own configuration."""
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = json.loads(json.dumps(inner.config.to_dict(), default=str))
    config.pop("quantization_config", None)  # what is quantized is seen on the weights
    name = config.get("_name_or_path") or type(inner).__name__
    return ModelSpec(name=name, model_type=inner.config.model_type, config=config)


def read(args: TrainingArguments, model: nn.Module) -> ParsedConfig:
    """The job: batches and the like from the arguments, dtypes, adapters and what trains from the model itself.

    Raises:
        UnsupportedError: for what is not modelled.
    """
    values = {name: value for name, value in args.to_dict().items() if name not in HERE}
    keys = ConfigReader(
        ConfigSource({name: ConfigValue(value, f"TrainingArguments({name}=...)") for name, value in values.items()}),
        "transformers",
    )
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    spread = {one for one in (getattr(inner, "hf_device_map", None) or {}).values() if one not in ("cpu", "disk")}
    if len(spread) > 1:
        raise UnsupportedError(f"hf_device_map: a model spread over {len(spread)} cards is not looked at yet")
    job = arguments(keys) | _of_model(model)
    job |= {"num_gpus": args.world_size} | (mapped(job) if spread else {})
    job["autocast"] = "bf16" if args.bf16 else "fp16" if args.fp16 else "none"
    on = getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")  # since transformers 5, before
    on = on or next((getattr(model, name) for name in names if hasattr(model, name)), False)  # PEFT switches it on too
    job["checkpointing"] = "full" if on else "none"
    own = version("transformers")
    job |= reentrant(
        keys, job, not at_least(own, "5.0"), checkpoints_outside(own)
    )  # modeling_utils.py: its own default
    reading = ParsedConfig("transformers", f"{version('transformers')} (installed)", "", job, NAMES, [])
    if str(args.eval_strategy.value) != "no":
        reading.eval_batch_size = args.per_device_eval_batch_size
    return reading


def _of_model(model: nn.Module) -> dict[str, Any]:
    from vramplan.torch_backend.model.build import SAVED, bare, own_parameters, part_of

    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    weights = dict(model.named_parameters())
    own = {path: _dtype(one) for path, one in own_parameters(model).items() if one.is_floating_point()}
    adapters = [one for path, one in weights.items() if "lora_" in path]
    job: dict[str, Any] = {"method": "lora" if adapters else "full", **_dtypes(model, own)}
    attention = inner.config._attn_implementation
    job["attention"] = ATTENTION.get(attention, attention)
    if adapters:
        job |= _of_adapters(model, _one_dtype("adapters", adapters))
    copies = [one for path, one in weights.items() if SAVED in path]
    if copies:
        job["saved_dtype"] = _one_dtype("modules_to_save", copies)
    eyes = IMAGE_PROCESSORS.get(inner.config.model_type)
    for path, one in weights.items() if eyes is not None else ():
        part = part_of(bare(path), eyes) if one.requires_grad else None  # type: ignore[arg-type]
        if part is not None:
            job[part] = "lora" if adapters else "train"
    return job


def _dtype(tensor: Any) -> str:
    return DTYPES[str(tensor.dtype)]


def _one_dtype(what: str, tensors: list[Any]) -> str:
    found = {_dtype(one) for one in tensors}
    if len(found) > 1:
        raise UnsupportedError(f"PEFT: {what} in {' and '.join(sorted(found))} at once are not modelled yet")
    return found.pop()


def _dtypes(model: Any, stored: dict[str, str]) -> dict[str, Any]:
    """What the weights that are not quantized are stored in (`stored`, by path), and how the others are.

    Raises:
        UnsupportedError: for a quantized layer that is not modelled.
    """
    norms = {dtype for path, dtype in stored.items() if is_norm(path)}
    rest = {dtype for path, dtype in stored.items() if not is_norm(path)}
    first = next(dtype for path, dtype in stored.items() if not is_norm(path))
    raised = {"fp32_norms": True} if norms == {"fp32"} and rest == {first} != norms else {}
    layers = [one for one in model.modules() if type(one).__name__ in ("Linear4bit", "Linear8bitLt")]
    layers = [one for one in layers if not hasattr(one, "base_layer")]  # PEFT's are called the same
    if not layers:
        return {"dtype": first, **raised}
    job: dict[str, Any] = (
        {"prepare_for_kbit_training": True} if norms | rest == {"fp32"} else {"dtype": first, **raised}
    )
    if type(layers[0]).__name__ == "Linear8bitLt":
        if not layers[0].state.threshold:
            raise UnsupportedError("bitsandbytes: llm_int8_threshold 0 is not modelled yet")
        return {"dtype": first, **job, "quantize": "int8"}
    computed = DTYPES[str(layers[0].compute_dtype)]
    if computed == "fp32":
        raise UnsupportedError("bitsandbytes: bnb_4bit_compute_dtype torch.float32 is not modelled yet")
    return {**job, "dtype": computed, "quantize": "nf4", "double_quant": layers[0].weight.compress_statistics}


def _of_adapters(model: Any, dtype: str) -> dict[str, Any]:
    (config,) = model.peft_config.values() if len(model.peft_config) == 1 else (None,)
    if config is None or config.peft_type != "LORA":
        raise UnsupportedError("PEFT: one LoRA adapter is modelled, this model has something else")
    if config.bias != "none":
        raise UnsupportedError("PEFT: trained biases are not modelled yet")
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
        "lora_targets": tuple(sorted({one.rpartition(".")[2] for one in targets})),
        "lora_dtype": dtype,
    }
