"""Frameworks around transformers' Trainer: ms-swift, LLaMA-Factory, axolotl, TRL, plain scripts, accelerate."""

from __future__ import annotations

from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.axolotl import CUT, LIGER
from vramplan.frameworks.writing.written import FULL_NAMES, Pairs, Written, allocator
from vramplan.job import Job

WRAPPED = "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
FLASH = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


def _common(job: Job) -> Pairs:
    """What all around the Trainer call alike."""
    return {
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optim": job.optimizer,
    }


def _adapters(job: Job, rank: str, targets: str, everything: Any, dora: str, saved: str) -> Pairs:
    if job.method == "full":
        return {}
    named = everything if job.lora_targets is None else list(job.lora_targets)
    return {rank: job.lora_rank, "lora_dropout": job.lora_dropout, targets: named} | _beside(job, dora, saved)


def _beside(job: Job, dora: str, saved: str) -> Pairs:
    """What goes with an adapter, by the framework's names."""
    pairs: Pairs = {dora: True} if job.method == "dora" else {}
    return pairs | ({saved: list(job.modules_to_save)} if job.modules_to_save else {})


def swift(model: str, job: Job) -> Written:
    """``swift sft`` of ms-swift 4."""
    pairs = {
        "model": model,
        "tuner_type": "full" if job.method == "full" else "lora",
        "torch_dtype": FULL_NAMES["fp16" if job.autocast == "fp16" and job.method == "full" else job.dtype],
        **_common(job),
        "max_length": job.sequence_length,
        **_adapters(job, "lora_rank", "target_modules", "all-linear", "use_dora", "modules_to_save"),
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_impl": "flash_attn" if job.attention == "flash" else job.attention,
    }
    if job.quantize == "nf4":
        pairs |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_use_double_quant": job.double_quant}
    if job.quantize == "int8":
        pairs |= {"quant_method": "bnb", "quant_bits": 8} | _kind(job)
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    if job.batches == "packed":
        pairs["packing"] = True
    variables = {"NPROC_PER_NODE": str(job.num_gpus)}
    if job.strategy == "pipeline":  # one process that sees all cards
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(job.num_gpus)))}
    elif job.strategy != "ddp":
        pairs["deepspeed"] = job.strategy
    if job.max_pixels is not None:
        variables["MAX_PIXELS"] = str(job.max_pixels)
    return Written(pairs, variables | allocator(job), "swift sft")


def llamafactory(model: str, job: Job) -> Written:
    """LLaMA-Factory's YAML."""
    pairs = {
        "model_name_or_path": model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if job.method == "full" else "lora",
        **_common(job),
        "cutoff_len": job.sequence_length,
        **_adapters(job, "lora_rank", "lora_target", "all", "use_dora", "additional_target"),
        "flash_attn": "fa2" if job.attention == "flash" else "disabled" if job.attention == "eager" else "sdpa",
    }
    for key in ("lora_target", "additional_target"):
        if isinstance(pairs.get(key), list):
            pairs[key] = ",".join(pairs[key])
    pure = job.method == "full" and job.dtype == "bf16"
    pairs["pure_bf16" if pure else "fp16" if job.autocast == "fp16" else "bf16"] = True
    if job.checkpointing == "none":
        pairs["disable_gradient_checkpointing"] = True
    if job.loss == "liger":
        pairs["enable_liger_kernel"] = True
    if job.quantize == "nf4":
        pairs |= {"quantization_bit": 4, "double_quantization": job.double_quant}
    if job.quantize == "int8":
        pairs |= {"quantization_bit": 8, "use_reentrant_gc": job.reentrant}
    if job.fp32_norms:
        pairs["upcast_layernorm"] = True
    variables = {"NPROC_PER_NODE": str(job.num_gpus)} if job.num_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    return Written(pairs, variables | allocator(job), "llamafactory-cli train train.yaml", file="train.yaml")


def axolotl(model: str, job: Job) -> Written:
    """Axolotl's YAML."""
    pairs: Pairs = {"base_model": model}
    if job.method != "full":
        pairs["adapter"] = "qlora" if job.quantize == "nf4" else "lora"
        pairs |= {"load_in_4bit": True} if job.quantize == "nf4" else {}
        pairs |= {"load_in_8bit": True} | _kind(job) if job.quantize == "int8" else {}
        pairs |= _beside(job, "peft_use_dora", "lora_modules_to_save")
        pairs |= {"lora_r": job.lora_rank, "lora_alpha": 2 * job.lora_rank, "lora_dropout": job.lora_dropout}
        everything = {"lora_target_linear": True}
        pairs |= everything if job.lora_targets is None else {"lora_target_modules": list(job.lora_targets)}
        pairs |= {} if job.lora_dtype == "fp32" else {"peft_autocast_adapter_dtype": False}
    pairs |= {
        "micro_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "sequence_len": job.sequence_length,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": FLASH[job.attention],
        "bf16" if job.autocast != "fp16" else "fp16": job.dtype != "fp32" or job.autocast != "none",
    }
    if job.loss == "liger":
        pairs |= {"plugins": [LIGER], "liger_fused_linear_cross_entropy": True}
    if job.loss == "cut":
        pairs["plugins"] = [CUT]
    if job.batches == "packed":
        pairs["sample_packing"] = True
    command = f"accelerate launch --num_processes {job.num_gpus} -m axolotl.cli.train train.yaml"
    return Written(pairs, allocator(job), command, file="train.yaml", launcher="num_processes")


def _trainer(model: str, job: Job) -> Pairs:
    """What TRL and plain scripts call alike."""
    return {
        "model_name_or_path": model,
        "dtype": FULL_NAMES[job.dtype],
        **_common(job),
        "max_length": job.sequence_length,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": FLASH[job.attention],
        "bf16": _half(job) == "bf16",
        "fp16": _half(job) == "fp16",
    }


def _half(job: Job) -> str:
    """The Trainer's half precision: autocast's, or what DeepSpeed casts the model to."""
    return job.dtype if job.strategy.startswith("zero") else job.autocast


TRL_ADAPTERS = ("lora_r", "lora_target_modules", "all-linear", "use_dora", "lora_modules_to_save")


def trl(model: str, job: Job) -> Written:
    """TRL's YAML."""
    pairs = _trainer(model, job) | {"num_processes": job.num_gpus}
    if job.method != "full":
        pairs |= {"use_peft": True, **_adapters(job, *TRL_ADAPTERS)}
    if job.quantize == "nf4":
        pairs |= {"load_in_4bit": True, "use_bnb_nested_quant": job.double_quant}
    if job.quantize == "int8":
        pairs |= {"load_in_8bit": True} | _kind(job)
    if job.batches == "packed":
        pairs["packing"] = True
    if job.strategy.startswith("zero"):
        pairs["accelerate_config"] = job.strategy
    return Written(pairs, allocator(job), "trl sft --config train.yaml", file="train.yaml")


def transformers(model: str, job: Job) -> Written:
    """Flags for a script around transformers' Trainer.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    if job.quantize != "none" or job.method == "dora" or job.lora_targets is not None or job.modules_to_save:
        raise UnsupportedError(
            "--for transformers, accelerate: quantized bases, DoRA, LoRA targets and modules to save are said in the"
            " script's own code"
        )
    pairs = _trainer(model, job)
    if job.method != "full":
        pairs |= {"use_peft": True, "lora_r": job.lora_rank, "lora_dropout": job.lora_dropout}
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    command = f"torchrun --nproc_per_node {job.num_gpus} train.py"
    return Written(pairs, allocator(job), command, launcher="nproc_per_node")


def _kind(job: Job) -> Pairs:
    """The kind of checkpointing, which int8 layers make a difference of."""
    return {"gradient_checkpointing_kwargs": {"use_reentrant": job.reentrant}} if job.checkpointing == "full" else {}


def accelerate(model: str, job: Job) -> Written:
    """The same flags behind ``accelerate launch``.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    half = _half(job) if _half(job) in ("bf16", "fp16") else "no"
    command = f"accelerate launch --num_processes {job.num_gpus} --mixed_precision {half} train.py"
    shared = {"fsdp": f"--use_fsdp --fsdp_version {job.fsdp.version} {WRAPPED}", "ddp": ""}.get(
        job.strategy, f"--use_deepspeed --zero_stage {job.strategy[-1]}"
    )
    if job.strategy == "fsdp" and not job.fsdp.reshard_after_forward:
        shared += f" --fsdp_reshard_after_forward {'false' if job.fsdp.version == 2 else 'SHARD_GRAD_OP'}"
    command = command.replace("launch", f"launch {shared}".rstrip())
    return transformers(model, job)._replace(command=command, launcher="num_processes")
