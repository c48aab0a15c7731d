"""Frameworks with words of their own: torchtune's YAML, unsloth's script, DeepSpeed's JSON."""

from __future__ import annotations

import json
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.readers import torchtune as tune
from vramplan.frameworks.writers.config_text import FULL_NAMES, ConfigText, Pairs, allocator
from vramplan.frameworks.writers.zero_fsdp import zero
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job


def torchtune(model: str, job: Job) -> ConfigText:
    """Torchtune's YAML, but for its tokenizer, data set and checkpoint.

    Raises:
        UnsupportedError: for a model that it does not build, or a job that its single-device recipes do not run.
    """
    if job.num_gpus > 1:
        raise UnsupportedError(f"--for torchtune: {job.num_gpus} cards: only its single-device recipes are modelled")
    _plain("torchtune", job)
    if job.quantize != "none":
        raise UnsupportedError(f"--for torchtune: --quantize {job.quantize}: its quantized recipes are not modelled")
    method = "full" if job.method == "full" else "lora"
    component = {name: path for path, name in tune.OPTIMIZERS.items()}
    component |= {"adamw_torch_fused": "torch.optim.AdamW", "sgd_momentum": "torch.optim.SGD"}
    if job.optimizer not in component:
        raise UnsupportedError(f"--for torchtune: optimizer {job.optimizer} is not one of its own")
    optimizer: Pairs = {"_component_": component[job.optimizer]}
    if job.optimizer == "adamw_torch_fused":
        optimizer["fused"] = True
    if job.optimizer == "sgd_momentum":
        optimizer["momentum"] = 0.9
    loss = "CrossEntropyLoss" if job.loss == "standard" else "CEWithChunkedOutputLoss"
    pairs: Pairs = {
        "model": {"_component_": _builder(model, method)} | (_torchtune_adapters(job) if method == "lora" else {}),
        "tokenizer": {"max_seq_len": job.sequence_length},
        "dataset": {"packed": job.batches == "packed"},
        "batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optimizer": optimizer,
        "loss": {"_component_": next(path for path in tune.LOSSES if path.endswith(loss))},
        "enable_activation_checkpointing": job.checkpointing == "full",
        "enable_activation_offloading": False,
        "dtype": job.dtype,
        "compile": False,
    }
    command = f"tune run {method}_finetune_single_device --config train.yaml"
    return ConfigText(pairs, allocator(job), command, file="train.yaml")


def _builder(model: str, method: str) -> str:
    wanted = find_model(model)
    exact = [name for name, hub in tune.MODELS.items() if hub == model]
    alike = [name for name, hub in tune.MODELS.items() if wanted and wanted.config == _config(hub)]
    for name in [*exact, *alike][:1]:
        family = next(known for known in tune.FAMILIES if name.startswith(f"{known}_"))
        return f"torchtune.models.{family}.{'lora_' if method == 'lora' else ''}{name}"
    raise UnsupportedError(f"--for torchtune: it builds no {model}, or with layers that are not modelled yet")


def _config(hub: str) -> Any:
    spec = find_model(hub)
    return spec and spec.config


def _torchtune_adapters(job: Job) -> Pairs:
    names = {theirs: own for own, theirs in tune.LAYERS.items()}
    targets = (*tune.ATTENTION, *tune.MLP) if job.lora_targets is None else job.lora_targets
    return {
        "lora_attn_modules": [names.get(one, one) for one in targets if one in tune.ATTENTION],
        "apply_lora_to_mlp": any(one in tune.MLP for one in targets),
        "apply_lora_to_output": "lm_head" in targets,
        "lora_rank": job.lora_rank,
        "lora_alpha": 2 * job.lora_rank,
        "lora_dropout": job.lora_dropout,
    }


def _plain(framework: str, job: Job) -> None:
    """Refuse what is modelled of other frameworks alone."""
    for said, wanted in (
        ("--quantize int8", job.quantize == "int8"),
        ("--method dora", job.method == "dora"),
        ("modules_to_save", bool(job.modules_to_save)),
    ):
        if wanted:
            raise UnsupportedError(f"--for {framework}: {said} is not modelled there")


def unsloth(model: str, job: Job) -> ConfigText:
    """A Python script of unsloth's three calls, but for its data set.

    Raises:
        UnsupportedError: for what is not modelled of it.
    """
    _plain("unsloth", job)
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
    return ConfigText(read, allocator(job), command, file="train.py", launcher="nproc_per_node", body=body)


def _call(pairs: Pairs, *first: str) -> str:
    """Arguments, a line each."""
    lines = [*first, *(f"{name}={_literal(value)}" for name, value in pairs.items())]
    return "\n" + "".join(f"    {line},\n" for line in lines)


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (str, list)) else str(value)


def deepspeed(model: str, job: Job) -> ConfigText:
    """DeepSpeed's JSON; model, method, length and checkpointing are said by what is trained with it.

    Raises:
        UnsupportedError: without ZeRO, which is what the file is for.
    """
    if job.strategy not in ("zero1", "zero2", "zero3"):
        raise UnsupportedError(
            f"--for deepspeed: --strategy {job.strategy} is not DeepSpeed's; give zero1, zero2 or zero3"
        )
    if job.optimizer != "adamw_torch_fused":
        raise UnsupportedError(f"--for deepspeed: optimizer {job.optimizer} is the script's own; DeepSpeed's is AdamW")
    half = job.dtype if job.dtype != "fp32" else job.autocast
    pairs: Pairs = {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": zero(job),
    }
    if half in ("bf16", "fp16"):
        pairs[half] = {"enabled": True}
    return ConfigText(pairs, {}, "", file="deepspeed.json", body=json.dumps(pairs, indent=2) + "\n")
