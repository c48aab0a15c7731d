"""unsloth: FastLanguageModel, FastVisionModel and their trainers' arguments in a Python script (2026.10.9).

Its kernels are its own: what is counted is transformers' code under full checkpointing with a fused head, which keeps
more. How much more no trace tells, so the answer says which way it errs.
"""

from __future__ import annotations

import json
import re
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, settle
from vramplan.frameworks.readers.trainer_arguments import (
    BATCH,
    NAMES,
    PYTHON,
    adapters,
    arguments,
    capped,
    dtype_of,
    evaluation,
    launched,
    mapped,
    parts,
)
from vramplan.frameworks.settings import ConfigReader
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
USUAL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""target_modules where nothing is said (models/llama.py: _DEFAULT_TARGET_MODULES)."""
DYNAMIC = re.compile(r"-(unsloth-)?bnb-4bit$")
OFFLOADS_FROM = 512
"""Tokens below which "unsloth" checkpointing is plain (models/_utils.py: apply_unsloth_gradient_checkpointing)."""
CONFIG_DEFAULTS: dict[bool, dict[str, Any]] = {
    True: {BATCH: 4, "gradient_accumulation_steps": 2, "optim": "adamw_8bit"},
    False: {BATCH: 8, "gradient_accumulation_steps": 1, "optim": "adamw_torch_fused"},
}
"""What unsloth puts into SFTConfig (models/rl.py); TrainingArguments keep transformers'."""


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a script around unsloth."""
    version, where = settle(PACKAGE, asked, NEWEST)
    own = keys.text("arguments", default="sftconfig") != "trainingarguments"
    usual = CONFIG_DEFAULTS[own]
    job = arguments(keys, usual[BATCH], usual["gradient_accumulation_steps"])
    job["optimizer"] = keys.text("optim", default=usual["optim"])
    whole = keys.flag("full_finetuning", default=False)
    adapted = keys.flag("get_peft_model", default=False)
    if not whole and not adapted:
        raise ConfigError(f"{keys.source.where}: no get_peft_model and no full_finetuning=True: nothing would train")
    stored = _stored(keys, whole)
    half = "bf16" if keys.source.supports_bf16 and stored != "fp16" else "fp16"
    half = "none" if whole and stored == "bf16" else half
    for name in ("bf16", "fp16"):
        half = name if keys.flag(name, default=False) else half
    job |= {"method": "full" if whole else "lora", "dtype": stored, "autocast": half, "loss": "liger"}
    if not whole:
        job |= _adapters(keys) | _quantized(keys)
    job["sequence_length"] = keys.count("max_seq_length", "max_length", default=2048)
    job |= _checkpointing(keys, job["sequence_length"])
    if keys.flag("packing", default=False) or keys.flag("padding_free", default=False):
        job["batches"] = "packed"
    is_seen = keys.text("loader", default="fastlanguagemodel") != "fastlanguagemodel"
    job |= parts("full") if whole else _parts(keys) if is_seen else {}
    job["num_gpus"] = launched(keys, cards)
    job |= mapped(job)  # models/loader.py: sequential
    keys.note(
        "warning",
        "",
        "unsloth runs its own kernels: counted are transformers' layers and a fused head, which keep more; its fused"
        " loss takes what is free, up to some GB (UNSLOTH_CE_LOSS_TARGET_GB)",
    )
    names = NAMES | {
        "sequence_length": "max_seq_length",
        "dtype": PYTHON["dtype"],
        "quantize": {"nf4": "load_in_4bit True"},
        "checkpointing": {"full": "use_gradient_checkpointing True"},
    }
    reading = ParsedConfig(PACKAGE, f"{version} ({where})", _model(keys), job, names, keys.notes)
    capped(keys, reading)
    reading.eval_batch_size = evaluation(keys, 4 if own else 8, keys.has("eval_strategy", "evaluation_strategy"))
    return reading


def _stored(keys: ConfigReader, whole: bool) -> str:
    """bf16 where nothing is said, fp16 on cards without it, also where bf16 is (models/llama.py: from_pretrained).

    Weights that train are fp32 instead of fp16 (unsloth_zoo, training_utils.py: prepare_model_for_training).
    """
    given = dtype_of(keys, "dtype")
    stored = given or "bf16"
    if stored == "bf16" and not keys.source.supports_bf16:
        stored = "fp16"
        keys.note("warning" if given else "default", "dtype", "the card has no bf16: unsloth takes float16")
    return "fp32" if whole and stored == "fp16" else stored


def _model(keys: ConfigReader) -> str:
    """Unsloth's copies are the originals under its own name; quantized copies by the name before that."""
    given = keys.name("model_name") or ""
    plain = DYNAMIC.sub("", given)
    if given.startswith("unsloth/"):
        original = find_model(plain.removeprefix("unsloth/").replace("Meta-Llama-3.1", "Llama-3.1"))
        plain = plain if original is None else original.name
    if plain != given:
        keys.note("default", "model_name", f"taken as {plain}, of which it is a copy")
    return plain


def _adapters(keys: ConfigReader) -> dict[str, Any]:
    job = adapters(keys, "r", usual=16)
    named = keys.names("target_modules")
    if named in ((), ("all-linear",)):
        sees = keys.text("loader", default="fastlanguagemodel") != "fastlanguagemodel"
        job["lora_targets"] = None if sees or named else USUAL
    else:
        job["lora_targets"] = named
    return job


def _quantized(keys: ConfigReader) -> dict[str, Any]:
    """Four bits unless told otherwise; what a checkpoint in four bits leaves in sixteen is not known by its name."""
    sixteen = keys.flag("load_in_16bit", default=False) or keys.flag("load_in_8bit", default=False)
    if not keys.flag("load_in_4bit", default=not sixteen):
        return {}
    if not keys.has("load_in_4bit"):
        keys.note("default", "load_in_4bit", "not set: True")
    keys.note(
        "warning",
        "load_in_4bit",
        "unsloth's dynamic checkpoints leave some layers in 16 bits: they need more than this",
    )
    return {"quantize": "nf4", "double_quant": True}


def _checkpointing(keys: ConfigReader, length: int) -> dict[str, str]:
    """What "unsloth" sends to the host, the layers' inputs, is counted on the card here."""
    given = keys.text("use_gradient_checkpointing", default="unsloth")
    if given not in ("unsloth", "true", "false"):
        raise keys.wrong(("use_gradient_checkpointing",), 'True, False or "unsloth"')
    if given == "false":
        return {"checkpointing": "full" if keys.flag("gradient_checkpointing", default=False) else "none"}
    keys.asked.add("gradient_checkpointing")
    if given == "unsloth" and length >= OFFLOADS_FROM:
        keys.note(
            "warning",
            "use_gradient_checkpointing",
            'is "unsloth": layers\' inputs go to the host; they are counted on the card here, so it needs less',
        )
    return {"checkpointing": "full"}


def _parts(keys: ConfigReader) -> dict[str, str]:
    """FastVisionModel adapts the tower as well, unless told otherwise; parts of layers are not told apart here."""
    for name in ("finetune_language_layers", "finetune_attention_modules", "finetune_mlp_modules"):
        if not keys.flag(name, default=True):
            raise keys.refuse(name)
    if keys.flag("finetune_audio_layers", default=False):
        raise keys.refuse("finetune_audio_layers")
    both = keys.flag("finetune_vision_layers", default=True) or keys.names("target_modules") == ("all-linear",)
    return {"vision": "lora", "projector": "lora"} if both else {}


def write(model: str, job: Job) -> ConfigText:
    """A Python script of unsloth's three calls, but for its data set.

    Raises:
        UnsupportedError: for what is not modelled of it.
    """
    refuse_unwritable("unsloth", job)
    whole = job.method == "full"
    load: Pairs = {
        "model_name": model,
        "max_seq_length": job.sequence_length,
        "dtype": FULL_NAMES[job.dtype],
        "load_in_4bit": job.quantize == "nf4",
    }
    load |= {"full_finetuning": True} if whole else {}
    adapters: Pairs = {"r": job.lora_rank, "lora_alpha": job.lora_rank, "lora_dropout": job.lora_dropout}
    loader = "FastVisionModel" if job.pictures else "FastLanguageModel"
    if job.lora_targets is not None:
        adapters["target_modules"] = list(job.lora_targets)
    elif job.pictures:  # all-linear would take the tower whatever is said of it
        adapters["finetune_vision_layers"] = job.vision == "lora"
    else:
        adapters["target_modules"] = "all-linear"
    adapters["use_gradient_checkpointing"] = job.checkpointing == "full"
    if whole:
        load["use_gradient_checkpointing"] = adapters["use_gradient_checkpointing"]
    arguments: Pairs = {
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optim": job.optimizer,
        "bf16": job.autocast == "bf16",
        "fp16": job.autocast == "fp16",
        "packing": job.batches == "packed",
        "output_dir": "output",
    }
    called = "" if whole else f"model = {loader}.get_peft_model({_call(adapters, 'model')})\n"
    body = (
        f"from unsloth import {loader}\n"
        "from trl import SFTConfig, SFTTrainer\n\n"
        f"model, tokenizer = {loader}.from_pretrained({_call(load)})\n"
        f"{called}"
        f"arguments = SFTConfig({_call(arguments)})\n"
        "trainer = SFTTrainer(model=model, processing_class=tokenizer, args=arguments, train_dataset=dataset)\n"
        "trainer.train()\n"
    )
    read = load | ({} if whole else adapters | {"get_peft_model": True}) | arguments | {"arguments": "SFTConfig"}
    read["loader"] = loader
    command = f"torchrun --nproc_per_node {job.num_gpus} train.py" if job.num_gpus > 1 else "python train.py"
    return ConfigText(read, allocator_variables(job), command, file="train.py", launcher="nproc_per_node", body=body)


def _call(pairs: Pairs, *first: str) -> str:
    """Arguments, a line each."""
    lines = [*first, *(f"{name}={_literal(value)}" for name, value in pairs.items())]
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
