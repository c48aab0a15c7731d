"""Frameworks around transformers' Trainer: ms-swift, LLaMA-Factory, axolotl, TRL, plain scripts, accelerate."""

from __future__ import annotations

from math import prod
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.readers.axolotl import CUT, LIGER
from vramplan.frameworks.readers.llamafactory import MAX_PIXELS
from vramplan.frameworks.readers.trl import CONFIGURATIONS
from vramplan.frameworks.readers.zero_config import preset, unset
from vramplan.frameworks.writers.config_text import FULL_NAMES, ConfigText, Pairs, allocator, word
from vramplan.frameworks.writers.zero_fsdp import engine
from vramplan.inputs.job import Fsdp, Job, Zero

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


def swift(model: str, job: Job) -> ConfigText:
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
    pairs |= {"freeze_vit": False} if job.vision != "frozen" else {}
    pairs |= {"freeze_aligner": False} if job.projector != "frozen" else {}
    if job.quantize == "nf4":
        pairs |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_use_double_quant": job.double_quant}
        pairs |= {} if job.dtype == "bf16" else {"bnb_4bit_compute_dtype": FULL_NAMES[job.dtype]}
    if job.quantize == "int8":
        pairs |= {"quant_method": "bnb", "quant_bits": 8} | _kind(job)
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    if job.batches == "packed":
        pairs["packing"] = True
    variables = {"NPROC_PER_NODE": str(job.num_gpus)}
    if job.strategy == "device_map":  # one process that sees all cards
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(job.num_gpus)))}
    pairs |= _swift_engine(job)
    if job.max_pixels is not None:
        variables["MAX_PIXELS"] = str(job.max_pixels)
    if job.max_tiles is not None:
        variables["MAX_NUM"] = str(job.max_tiles)
    return ConfigText(pairs, variables | allocator(job), "swift sft")


def _swift_engine(job: Job) -> Pairs:
    """A configuration that it ships where that is the job's, else the job's own as JSON."""
    if job.strategy.startswith("zero"):
        for ending, offload in (("", "none"), ("_offload", "optimizer"), ("_offload", "all")):
            shipped = preset(int(job.strategy[-1]), offload)
            wanted = Zero(**shipped["zero"], leaf_mixtures=job.zero.leaf_mixtures)
            if (wanted, offload) == (job.zero, job.offload) and (offload != "optimizer" or job.strategy != "zero3"):
                return {"deepspeed": f"{job.strategy}{ending}"}
    pairs = engine(job)
    if job.strategy != "fsdp":
        return pairs
    pairs["fsdp_config"]["activation_checkpointing"] = job.checkpointing == "full"
    is_shipped = (job.fsdp, job.offload, job.checkpointing) == (Fsdp(), "none", "full")
    return {"gradient_checkpointing": False, "fsdp": "fsdp2" if is_shipped else pairs}


def llamafactory(model: str, job: Job) -> ConfigText:
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
    pure = job.method == "full" and job.dtype == "bf16" and not job.strategy.startswith("zero")  # which casts itself
    pairs["pure_bf16" if pure else "fp16" if _half(job) == "fp16" else "bf16"] = True
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
    pairs |= {"freeze_vision_tower": False} if job.vision != "frozen" else {}
    pairs |= {"freeze_multi_modal_projector": False} if job.projector == "train" else {}
    pixels = job.max_pixels or (prod(job.image_size) if job.images and job.image_size else 0)
    if job.max_pixels or pixels > MAX_PIXELS:
        pairs["image_max_pixels"] = pixels
    pairs |= engine(job)
    variables = {"NPROC_PER_NODE": str(job.num_gpus)} if job.num_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    variables |= {"FORCE_TORCHRUN": "1"} if "deepspeed" in pairs else {}
    return ConfigText(pairs, variables | allocator(job), "llamafactory-cli train train.yaml", file="train.yaml")


def axolotl(model: str, job: Job) -> ConfigText:
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
    if job.method == "full" and job.attention != "flash" and job.dtype != "fp32":
        pairs["embeddings_skip_upcast"] = True
    if job.pictures and job.method == "full" and job.vision == "frozen":
        pairs["freeze_mm_modules"] = True
    if job.loss == "liger":
        pairs |= {"plugins": [LIGER], "liger_fused_linear_cross_entropy": True}
    if job.loss == "cut":
        pairs["plugins"] = [CUT]
    if job.batches == "packed":
        pairs["sample_packing"] = True
    pairs |= _axolotl_engine(job)
    command = f"accelerate launch --num_processes {job.num_gpus} -m axolotl.cli.train train.yaml"
    return ConfigText(pairs, allocator(job), command, file="train.yaml", launcher="num_processes")


def _axolotl_engine(job: Job) -> Pairs:
    """Its version of FSDP stands beside the configuration, and names there have no prefix."""
    pairs = engine(job)
    if job.strategy != "fsdp":
        return pairs
    config = {name.removeprefix("fsdp_"): value for name, value in pairs["fsdp_config"].items()}
    config |= {"offload_params": True} if job.offload == "all" else {}
    return {"fsdp_version": config.pop("version"), "fsdp_config": config}


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


def _shares_alike(job: Job, other: Job) -> bool:
    """Whether cards share the work in the same way."""
    ways = ((one.strategy, one.offload, one.fsdp, one.zero) for one in (job, other))
    return len(set(ways)) == 1


TRL_ADAPTERS = ("lora_r", "lora_target_modules", "all-linear", "use_dora", "lora_modules_to_save")


def trl(model: str, job: Job) -> ConfigText:
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
    shipped = ((name, Job.model_validate(found, strict=False)) for name, found in CONFIGURATIONS.items())
    alike = [name for name, one in shipped if _shares_alike(job, one)]
    pairs |= {"accelerate_config": alike[0]} if alike and job.strategy != "ddp" else engine(job)
    return ConfigText(pairs, allocator(job), "trl sft --config train.yaml", file="train.yaml")


def transformers(model: str, job: Job) -> ConfigText:
    """Flags for a script around transformers' Trainer.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    command = f"torchrun --nproc_per_node {job.num_gpus} train.py"
    return ConfigText(_script(model, job) | engine(job), allocator(job), command, launcher="nproc_per_node")


def _script(model: str, job: Job) -> Pairs:
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
    return pairs


def _kind(job: Job) -> Pairs:
    """The kind of checkpointing, which int8 layers make a difference of."""
    return {"gradient_checkpointing_kwargs": {"use_reentrant": job.reentrant}} if job.checkpointing == "full" else {}


def accelerate(model: str, job: Job) -> ConfigText:
    """The same flags behind ``accelerate launch``, which is told how cards share the work.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    half = _half(job) if _half(job) in ("bf16", "fp16") else "no"
    launcher: Pairs = {"num_processes": job.num_gpus, "mixed_precision": half}
    pairs, shared = _script(model, job), ""
    if job.strategy == "fsdp":
        shared, told = "--use_fsdp", engine(job)["fsdp_config"]
        launcher |= {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in told.items()}
        launcher |= {"fsdp_offload_params": True} if job.offload == "all" else {}
    elif job.strategy.startswith("zero") and job.zero == Zero(**unset(int(job.strategy[-1]))["zero"]):
        shared, host = "--use_deepspeed", ("offload_optimizer_device", "offload_param_device")
        launcher["zero_stage"] = job.strategy[-1]
        launcher |= dict.fromkeys(host[: ("none", "optimizer", "all").index(job.offload)], "cpu")
    else:  # with sizes of one's own, which its flags do not say
        pairs |= engine(job)
    said = " ".join(f"--{name} {word(value)}" for name, value in launcher.items())
    command = f"accelerate launch {shared} {said} train.py".replace("  ", " ")
    return ConfigText(pairs, allocator(job), command, launcher="num_processes")
