"""axolotl: ``axolotl train`` and its YAML (0.9 to 0.19; axolotl/utils/schemas, loaders/model.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, Words, at_least, settle, without
from vramplan.frameworks.readers.trainer_arguments import (
    adapters,
    arguments,
    attention,
    beside,
    checkpointing,
    experts,
    launched,
    mapped,
    reentrant,
    targets,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import ATTENTION_NAMES, dora_and_saved_modules, reentrant_kwargs
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "axolotl", "0.19.0"
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER = "axolotl.integrations.liger.LigerPlugin"
FSDP_VERSION = 1
"""Where nothing is said (utils/schemas/validation.py: check_fsdp_version_in_fsdp_config)."""
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of an axolotl configuration."""
    version, where = settle(PACKAGE, asked, NEWEST)
    method = keys.text("adapter", default="full")
    if method not in ("full", "lora", "qlora"):
        raise keys.refuse("adapter")
    four = keys.flag("load_in_4bit", default=False)
    if four != (method == "qlora"):
        raise keys.refuse(
            "adapter" if keys.has("adapter") else "load_in_4bit",
            "goes with load_in_4bit: true, and only with adapter: qlora",
        )
    eight = keys.flag("load_in_8bit", default=False)
    if eight and method != "lora":
        raise keys.refuse("load_in_8bit", "goes with adapter: lora alone")
    if keys.part("bnb_config_kwargs") is not None:
        raise keys.refuse("bnb_config_kwargs")
    method = "lora" if method == "qlora" else method
    job = arguments(keys, fsdp_version=FSDP_VERSION)
    keys.notes = [note for note in keys.notes if note.key == "fsdp"]  # the Trainer's names are not axolotl's
    job |= {
        "method": method,
        "micro_batch_size": keys.count("micro_batch_size", default=1),
        "gradient_accumulation_steps": keys.count("gradient_accumulation_steps", default=1),
        "optimizer": keys.text("optimizer", default="adamw_torch_fused"),
        "checkpointing": _checkpointing(keys),
        "sequence_length": keys.count("sequence_len", default=512),
    }
    for name, default in (("micro_batch_size", 1), ("sequence_len", 512)):
        if not keys.has(name):
            keys.note("default", name, f"not set: {default}")
    job |= experts(not at_least(version, "0.14"))  # its requirements: transformers 5.0
    job |= _dtypes(keys) | ({"quantize": "nf4"} if four else {"quantize": "int8"} if eight else {})
    job |= _adapters(keys) if method == "lora" else {}
    job |= _divided(keys, job)
    job |= reentrant(keys, job, True)  # utils/config/__init__.py: normalize_config
    job |= _attention(keys)
    job |= _loss(keys)
    packed = keys.flag("sample_packing", default=False)
    job["batches"] = "packed" if packed else "padded" if job["micro_batch_size"] > 1 else "unpadded"
    pads = keys.flag("pad_to_sequence_len", default=packed) and not packed
    if pads:
        job["batches"] = "padded"
    upcast = job["dtype"] != "fp32" and not keys.flag("embeddings_skip_upcast", default=False)
    if method == "full" and job.get("attention") != "flash" and upcast:
        raise keys.refuse(
            "base_model",
            "trained whole without flash attention keeps fp32 embeddings, which is not modelled yet;"
            " set flash attention, or embeddings_skip_upcast: true",
        )
    if method == "full":
        job |= {"vision": "train", "projector": "train"} if not keys.flag("freeze_mm_modules", default=False) else {}
    size = keys.names("image_size")
    if size and all(one.isdigit() for one in size):
        job["image_size"] = (int(size[0]), int(size[-1]))
    job["num_gpus"] = launched(keys, cards)
    job |= mapped(job)  # loaders/model.py: _set_device_map_config
    names: dict[str, Words] = {
        "micro_batch_size": "micro_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "eval_batch_size": "eval_batch_size",
        "optimizer": "optimizer",
        "sequence_length": "sequence_len",
        "checkpointing": {"full": "gradient_checkpointing true"},
        "attention": {"sdpa": "attn_implementation sdpa", "flash": "attn_implementation flash_attention_2"},
        "loss": {
            "liger": f"plugins [{LIGER}]; liger_fused_linear_cross_entropy true",
            "cut": f"plugins [{CUT}]",
        },
        "dtype": {"bf16": "bf16 true"},
        "autocast": {"fp16": "bf16 false; fp16 true"},
        "strategy": {"zero3": "deepspeed deepspeed_configs/zero3_bf16.json"},
        "method": {"lora": "adapter lora; lora_r 8; lora_alpha 16; lora_target_linear true"},
        "quantize": {"nf4": "adapter qlora; load_in_4bit true"},
        "lora_dropout": "lora_dropout",
    }
    reading = ParsedConfig("axolotl", f"{version} ({where})", keys.name("base_model") or "", job, names, keys.notes)
    held = keys.number("val_set_size", default=0.0)
    reading.taken = without(held)
    if held > 0 or keys.has("test_datasets"):
        reading.eval_batch_size = keys.count("eval_batch_size", default=job["micro_batch_size"])
    reading.expandable = True
    reading.rows = "packed" if packed else "padded" if pads else "samples"
    reading.drops_longer = keys.text("excess_length_strategy", default="drop") == "drop"
    return reading


def _dtypes(keys: ConfigReader) -> dict[str, str]:
    """bf16: auto loads bf16 weights and runs bf16 autocast on any card since Ampere."""
    if keys.flag("fp16", default=False) or keys.has("float16"):
        return {"dtype": "fp16", "autocast": "fp16"}
    said = keys.text("bf16", default="auto")
    if said in ("auto", "full") or keys.flag("bf16", "bfloat16", default=False):
        return {"dtype": "bf16", "autocast": "bf16"}
    return {"dtype": "fp32", "autocast": "none"}


BITSANDBYTES = ("adamw_8bit", "adamw_bnb_8bit")
"""Optimizers whose states FSDP 2 does not divide."""


def _divided(keys: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """Four bits are packed in bf16 (loaders/model.py); version 2 is wrapped in its own way (monkeypatch/accelerate)."""
    found: dict[str, Any] = {}
    if job.get("quantize") == "nf4" and job.get("strategy") in ("fsdp", "zero3"):
        found["quant_storage"] = "bf16"
    config = keys.part("fsdp_config")
    if job.get("strategy") != "fsdp" or job["fsdp"]["version"] != 2:
        return found
    if job["optimizer"] in BITSANDBYTES:  # utils/schemas/validation.py: check_fsdp2_w_8bit_optimizer
        raise ConfigError(f"{keys.source.where}: optimizer: axolotl stops at {job['optimizer']} under FSDP 2")
    if config is not None:
        names = ("fsdp_cpu_ram_efficient_loading", "cpu_ram_efficient_loading")
        if config.flag(*names, default=False) and job.get("quantize") == "nf4":
            raise ConfigError(f"{keys.source.where}: {names[1]}: axolotl stops at it with load_in_4bit under FSDP 2")
        found["fsdp"] = job["fsdp"] | {"wraps_embeddings": False}
    return found


def _checkpointing(keys: ConfigReader) -> str:
    given = keys.text("gradient_checkpointing", "activation_checkpointing", default="false")
    if given in ("offload", "offload_disk", "unsloth"):
        raise keys.refuse("gradient_checkpointing")
    return checkpointing(keys)


def _adapters(keys: ConfigReader) -> dict[str, Any]:
    if not keys.has("lora_r"):
        raise keys.refuse("lora_r", "is not set; axolotl needs it for adapter: lora")
    for name in KERNELS:
        if keys.flag(name, default=False):
            raise keys.refuse(name)
    if not any(keys.has(name) for name in KERNELS):
        keys.note(
            "warning",
            "lora_mlp_kernel",
            "axolotl may switch its fused adapter kernels on by itself: then it needs less",
        )
    job = adapters(keys, "lora_r") | beside(keys, "peft_use_dora", "lora_modules_to_save")
    if not keys.flag("peft_autocast_adapter_dtype", default=True):
        job["lora_dtype"] = "bf16"
    named = targets(keys, "lora_target_modules")
    linear = keys.flag("lora_target_linear", default=False)
    if named is not None and not linear:
        job["lora_targets"] = named
    else:
        job |= {"vision": "lora", "projector": "lora"}  # no filter for towers
    return job


def _attention(keys: ConfigReader) -> dict[str, str]:
    job = attention(keys, "attn_implementation")
    if keys.flag("flash_attention", default=False):
        job = {"attention": "flash"}
    elif keys.flag("sdp_attention", default=False):
        job = {"attention": "sdpa"}
    elif keys.flag("eager_attention", default=False):
        job = {"attention": "eager"}
    return job


def _loss(keys: ConfigReader) -> dict[str, str]:
    plugins = " ".join(keys.names("plugins"))
    cut = "CutCrossEntropy" in plugins and keys.flag("cut_cross_entropy", default=True)
    fused = keys.flag("liger_fused_linear_cross_entropy", default=False)
    for name in ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "liger_swiglu"):
        if keys.flag(name, default=False):
            keys.note("warning", name, "Liger's own kernels keep less than is counted here: the answer errs upward")
    if cut:
        return {"loss": "cut"}
    return {"loss": "liger"} if fused and "iger" in plugins else {}


def write(model: str, job: Job) -> ConfigText:
    """Axolotl's YAML."""
    pairs: Pairs = {"base_model": model}
    if job.method != "full":
        pairs["adapter"] = "qlora" if job.quantize == "nf4" else "lora"
        pairs |= {"load_in_4bit": True} if job.quantize == "nf4" else {}
        pairs |= {"load_in_8bit": True} | reentrant_kwargs(job) if job.quantize == "int8" else {}
        pairs |= dora_and_saved_modules(job, "peft_use_dora", "lora_modules_to_save")
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
        "attn_implementation": ATTENTION_NAMES[job.attention],
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
    pairs |= _sharding(job)
    command = f"accelerate launch --num_processes {job.num_gpus} -m axolotl.cli.train train.yaml"
    return ConfigText(pairs, allocator_variables(job), command, file="train.yaml", launcher="num_processes")


def _sharding(job: Job) -> Pairs:
    """Its version of FSDP stands beside the configuration, and names there have no prefix."""
    pairs = sharding(job)
    if job.strategy != "fsdp":
        return pairs
    config = {name.removeprefix("fsdp_"): value for name, value in pairs["fsdp_config"].items()}
    config |= {"offload_params": True} if job.offload == "all" else {}
    return {"fsdp_version": config.pop("version"), "fsdp_config": config}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("axolotl", "train"), ("axolotl.cli.train",), ("scripts/finetune.py",)),
    marks=frozenset(
        {"base_model", "sequence_len", "micro_batch_size", "adapter", "sample_packing", "lora_target_linear"}
    ),
    overrides="click",  # cli/utils/args.py
    valued_flags=("gradient_checkpointing",),
    expands_all_linear=True,
    writers=(Writer("axolotl", write, ENGINES),),
)
