"""unsloth: FastLanguageModel, FastVisionModel and their trainers' arguments in a Python script (2026.10.9).

It runs its own kernels: counted are transformers' layers under full checkpointing with a fused head, which keep more.
How much more has not been traced, so a note says which way the estimate errs.
"""

from __future__ import annotations

import json
import re
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.framework import Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, resolve_version
from vramplan.frameworks.readers import saved_adapters, trl_trainers, unsloth_tasks
from vramplan.frameworks.readers.saved_adapters import LoraKeys
from vramplan.frameworks.readers.trainer_arguments import (
    BATCH_KEY,
    NAMES,
    PYTHON_NAMES,
    adapter_fields,
    device_map_field,
    eval_batch_size,
    num_launched_processes,
    read_dtype,
    read_image_caps,
    trainer_fields,
    vision_fields,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import (
    FULL_NAMES,
    ConfigText,
    Pairs,
    allocator_variables,
    refuse_unwritable,
)
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "unsloth", "2026.10.9"
DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""target_modules by default (models/llama.py: _DEFAULT_TARGET_MODULES)."""
DYNAMIC_4BIT = re.compile(r"-(unsloth-)?bnb-4bit$")
OFFLOADS_FROM = 512
"""Tokens below which "unsloth" checkpointing is plain (models/_utils.py: apply_unsloth_gradient_checkpointing)."""
SAVED = LoraKeys("model_name", "r", "target_modules", "use_dora", "modules_to_save")
"""Its keys for adapters whose folder is loaded in place of a model."""
CONFIG_DEFAULTS: dict[bool, dict[str, Any]] = {
    True: {BATCH_KEY: 4, "gradient_accumulation_steps": 2, "optim": "adamw_8bit"},
    False: {BATCH_KEY: 8, "gradient_accumulation_steps": 1, "optim": "adamw_torch_fused"},
}
"""Defaults of SFTConfig as unsloth patches it (models/rl.py), and of TrainingArguments, which are transformers'."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a script around unsloth."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    is_sft_config = config.lowercase("arguments", default="sftconfig") != "trainingarguments"
    defaults = CONFIG_DEFAULTS[is_sft_config]
    job = trainer_fields(config, defaults[BATCH_KEY], defaults["gradient_accumulation_steps"])
    job["optimizer"] = config.lowercase("optim", default=defaults["optim"])
    is_full = config.boolean("full_finetuning", default=False)
    saved = None if is_full else _saved(config)
    has_adapters = config.boolean("get_peft_model", default=False)
    if not is_full and not has_adapters and saved is None:
        raise ConfigError(_trains_nothing(config))
    weights_dtype = _stored(config, is_full)
    autocast = "bf16" if config.source.supports_bf16 and weights_dtype != "fp16" else "fp16"
    autocast = "none" if is_full and weights_dtype == "bf16" else autocast
    for name in ("bf16", "fp16"):
        autocast = name if config.boolean(name, default=False) else autocast
    job |= {"method": "full" if is_full else "lora", "dtype": weights_dtype, "autocast": autocast, "loss": "liger"}
    if not is_full:
        job |= (_adapters(config) if saved is None else saved | {"lora_dtype": "fp32"}) | _quantized(config)
    job["sequence_length"] = config.integer("max_seq_length", "max_length", default=2048)
    job |= _checkpointing(config, job["sequence_length"])
    if config.boolean("packing", default=False) or config.boolean("padding_free", default=False):
        job["batches"] = "packed"
    is_vision_model = config.lowercase("loader", default="fastlanguagemodel") != "fastlanguagemodel"
    if is_full or (is_vision_model and saved is None):
        job |= vision_fields("full") if is_full else _vision_fields(config)
    job["num_gpus"] = num_launched_processes(config, num_gpus)
    job |= device_map_field(job)  # models/loader.py: sequential
    config.note(
        "warning",
        "",
        "unsloth runs its own kernels: counted are transformers' layers and a fused head, which keep more; its fused"
        " loss takes what is free, up to some GB (UNSLOTH_CE_LOSS_TARGET_GB)",
    )
    names = NAMES | {
        "sequence_length": "max_seq_length",
        "dtype": PYTHON_NAMES["dtype"],
        "quantize": {"nf4": "load_in_4bit True"},
        "checkpointing": {"full": "use_gradient_checkpointing True"},
    }
    parsed = ParsedConfig(PACKAGE, f"{version} ({where})", _model(config), job, names, config.notes)
    read_image_caps(config, parsed)
    parsed.eval_batch_size = eval_batch_size(
        config, 4 if is_sft_config else 8, config.has("eval_strategy", "evaluation_strategy")
    )
    task = trl_trainers.task_of(config) if config.has(trl_trainers.TRAINER_KEY) else None
    if task != "grpo":
        config.require_off("fast_inference", why="keeps vLLM beside the training, which is modelled for GRPO alone")
    if task is not None:
        unsloth_tasks.train_for(parsed, config, task)
    return parsed


def _stored(config: ConfigReader, is_full: bool) -> str:
    """bf16 by default; fp16 on GPUs without bf16, even if bf16 is set (models/llama.py: from_pretrained).

    Trained weights are fp32 instead of fp16 (unsloth_zoo, training_utils.py: prepare_model_for_training).
    """
    requested = read_dtype(config, "dtype")
    dtype = requested or "bf16"
    if dtype == "bf16" and not config.source.supports_bf16:
        dtype = "fp16"
        config.note("warning" if requested else "default", "dtype", "the GPU has no bf16: unsloth takes float16")
    return "fp32" if is_full and dtype == "fp16" else dtype


def _saved(config: ConfigReader) -> dict[str, Any] | None:
    """Fields of adapters whose folder the model is loaded from; None if it is a model (models/loader.py: is_peft).

    Raises:
        ConfigError: if get_peft_model would add others, at which unsloth stops (models/llama.py: get_peft_model).
        UnsupportedError: for what is not modelled of them.
    """
    adds = config.boolean("get_peft_model", default=False)
    by_options = not adds and all(config.has(key) for key in (SAVED.rank, SAVED.targets))
    if not by_options and saved_adapters.find(config.string("model_name") or "", config.folder) is None:
        return None
    fields = saved_adapters.fields_of(config, SAVED)
    rank = config.integer("r", default=16)
    if adds and rank != fields["lora_rank"]:
        raise ConfigError(
            f"{config.place('get_peft_model')}: get_peft_model with r={rank} on adapters of rank {fields['lora_rank']}:"
            " unsloth stops at other adapters than those that it loaded"
        )
    if fields.get("method") == "dora" or "modules_to_save" in fields:
        raise config.unsupported("model_name", "has DoRA or modules_to_save, which are not modelled for unsloth")
    return fields


def _trains_nothing(config: ConfigReader) -> str:
    """The error for a model without adapters, unless the folder of some that is not here is named in its place."""
    text = f"{config.source.where}: no get_peft_model and no full_finetuning=True: nothing would train"
    name = _model(config)
    if not name or find_model(name) is not None:
        return text
    return (
        f"{text}; if {name} is a folder of adapters, give {setting('model', 'BASE')} {setting('set', 'r=N')}"
        f" {setting('set', 'target_modules=q_proj,v_proj')} as {saved_adapters.FILE} in it says"
    )


def _model(config: ConfigReader) -> str:
    """The original of a copy under unsloth's name; a quantized copy's is named before its suffix."""
    saved = saved_adapters.find(config.string("model_name") or "", config.folder)
    name = (None if saved is None else saved.base) or config.string("model_name") or ""
    original_name = DYNAMIC_4BIT.sub("", name)
    if name.startswith("unsloth/"):
        original = find_model(original_name.removeprefix("unsloth/").replace("Meta-Llama-3.1", "Llama-3.1"))
        original_name = original_name if original is None else original.name
    if original_name != name:
        config.note("default", "model_name", f"taken as {original_name}, of which it is a copy")
    return original_name


def _adapters(config: ConfigReader) -> dict[str, Any]:
    job = adapter_fields(config, "r", default_rank=16)
    job["lora_dtype"] = "fp32"  # unsloth_zoo, training_utils.py: prepare_model_for_training
    targets = config.strings("target_modules")
    if targets in ((), ("all-linear",)):
        is_vision_model = config.lowercase("loader", default="fastlanguagemodel") != "fastlanguagemodel"
        job["lora_targets"] = None if is_vision_model or targets else DEFAULT_TARGETS
    else:
        job["lora_targets"] = targets
    return job


def _quantized(config: ConfigReader) -> dict[str, Any]:
    """Four bits by default; which layers a dynamic checkpoint leaves in 16 bits is not known by its name."""
    is_16bit = config.boolean("load_in_16bit", default=False) or config.boolean("load_in_8bit", default=False)
    if not config.boolean("load_in_4bit", default=not is_16bit):
        return {}
    if not config.has("load_in_4bit"):
        config.note("default", "load_in_4bit", "not set: True")
    config.note(
        "warning",
        "load_in_4bit",
        "unsloth's dynamic checkpoints leave some layers in 16 bits: they need more than this",
    )
    return {"quantize": "nf4", "double_quant": True}


def _checkpointing(config: ConfigReader, length: int) -> dict[str, str]:
    """Mode "unsloth" offloads the layers' inputs to the host; here they are counted on the GPU."""
    mode = config.lowercase("use_gradient_checkpointing", default="unsloth")
    if mode not in ("unsloth", "true", "false"):
        raise config.invalid(("use_gradient_checkpointing",), 'True, False or "unsloth"')
    if mode == "false":
        return {"checkpointing": "full" if config.boolean("gradient_checkpointing", default=False) else "none"}
    config.read_keys.add("gradient_checkpointing")
    if mode == "unsloth" and length >= OFFLOADS_FROM:
        config.note(
            "warning",
            "use_gradient_checkpointing",
            'is "unsloth": layers\' inputs go to the host; they are counted on the GPU here, so it needs less',
        )
    return {"checkpointing": "full"}


def _vision_fields(config: ConfigReader) -> dict[str, str]:
    """FastVisionModel adapts the vision tower too by default; its choices inside layers are refused."""
    for name in ("finetune_language_layers", "finetune_attention_modules", "finetune_mlp_modules"):
        if not config.boolean(name, default=True):
            raise config.unsupported(name)
    if config.boolean("finetune_audio_layers", default=False):
        raise config.unsupported("finetune_audio_layers")
    adapts_tower = config.boolean("finetune_vision_layers", default=True) or config.strings("target_modules") == (
        "all-linear",
    )
    return {"vision": "lora", "projector": "lora"} if adapts_tower else {}


def write(model: str, job: Job) -> ConfigText:
    """A Python script of unsloth's three calls, without its data set.

    Raises:
        UnsupportedError: for settings that are not modelled there.
    """
    refuse_unwritable("unsloth", job)
    is_full = job.method == "full"
    load_arguments: Pairs = {
        "model_name": model,
        "max_seq_length": job.sequence_length,
        "dtype": FULL_NAMES[job.dtype],
        "load_in_4bit": job.quantize == "nf4",
    }
    load_arguments |= {"full_finetuning": True} if is_full else {}
    adapter_arguments: Pairs = {"r": job.lora_rank, "lora_alpha": job.lora_rank, "lora_dropout": job.lora_dropout}
    loader = "FastVisionModel" if job.pictures else "FastLanguageModel"
    if job.lora_targets is not None:
        adapter_arguments["target_modules"] = list(job.lora_targets)
    elif job.pictures:  # all-linear would adapt the tower regardless of finetune_vision_layers
        adapter_arguments["finetune_vision_layers"] = job.vision == "lora"
    else:
        adapter_arguments["target_modules"] = "all-linear"
    adapter_arguments["use_gradient_checkpointing"] = job.checkpointing == "full"
    if is_full:
        load_arguments["use_gradient_checkpointing"] = adapter_arguments["use_gradient_checkpointing"]
    arguments: Pairs = {
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optim": job.optimizer,
        "bf16": job.autocast == "bf16",
        "fp16": job.autocast == "fp16",
        "packing": job.batches == "packed",
        "output_dir": "output",
    }
    get_peft_model = "" if is_full else f"model = {loader}.get_peft_model({_call(adapter_arguments, 'model')})\n"
    body = (
        f"from unsloth import {loader}\n"
        "from trl import SFTConfig, SFTTrainer\n\n"
        f"model, tokenizer = {loader}.from_pretrained({_call(load_arguments)})\n"
        f"{get_peft_model}"
        f"arguments = SFTConfig({_call(arguments)})\n"
        "trainer = SFTTrainer(model=model, processing_class=tokenizer, args=arguments, train_dataset=dataset)\n"
        "trainer.train()\n"
    )
    pairs = (
        load_arguments
        | ({} if is_full else adapter_arguments | {"get_peft_model": True})
        | arguments
        | {"arguments": "SFTConfig"}
    )
    pairs["loader"] = loader
    command = f"{nodes.torchrun_command(job)} train.py" if job.num_gpus > 1 else "python train.py"
    return ConfigText(
        pairs,
        allocator_variables(job),
        command,
        file="train.py",
        launcher=nodes.torchrun(job),
        body=body,
        notes=nodes.notes(job),
    )


def _call(pairs: Pairs, *positional: str) -> str:
    """Arguments of a call, one on each line."""
    lines = [*positional, *(f"{name}={_literal(value)}" for name, value in pairs.items())]
    return "\n" + "".join(f"    {line},\n" for line in lines)


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (str, list)) else str(value)


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    marks=frozenset({"load_in_16bit", "full_finetuning", "use_gradient_checkpointing"}),
    inherits=("trl", "transformers"),
    writers=(Writer("unsloth", write),),
)
