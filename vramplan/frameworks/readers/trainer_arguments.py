"""Job fields from transformers' TrainingArguments, shared by the readers of all Trainer-based frameworks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.liger import liger_fields
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least, visible_gpus
from vramplan.frameworks.readers import fsdp_config as fsdp
from vramplan.frameworks.readers import zero_config
from vramplan.frameworks.settings import TRUE, ConfigReader
from vramplan.frameworks.syntax.patterns import compiled

DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32"}
DTYPES |= {"fp32": "fp32", "float": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
ATTENTION = {"flash_attn": "flash", "flash_attention_2": "flash", "fa2": "flash", "flash_attn_2": "flash"}
ATTENTION |= {"sdpa": "sdpa", "eager": "eager", "disabled": "eager", "auto": "", "flash_attention": "flash"}
BATCH_KEY = "per_device_train_batch_size"
LENGTH_KEYS = ("block_size", "max_seq_length", "max_length", "model_max_length", "cutoff_len")
"""Keys for the length of a sample in scripts."""
NAMES: dict[str, KeyNames] = {
    "micro_batch_size": BATCH_KEY,
    "eval_batch_size": "per_device_eval_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "optimizer": "optim",
    "loss": {"liger": "use_liger_kernel true"},
    "checkpointing": {"full": "gradient_checkpointing true"},
    "attention": {"sdpa": "attn_implementation sdpa", "flash": "attn_implementation flash_attention_2"},
    "dtype": {"bf16": "dtype bfloat16", "fp16": "dtype float16", "fp32": "dtype float32"},
    "autocast": {"bf16": "fp16 false; bf16 true", "fp16": "bf16 false; fp16 true"},
    "lora_dropout": "lora_dropout",
}
PYTHON_NAMES: dict[str, KeyNames] = {
    "dtype": {"bf16": "dtype torch.bfloat16", "fp16": "dtype torch.float16", "fp32": "dtype torch.float32"},
    "quantize": {
        "nf4": "quantization_config BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)",
        "int8": "quantization_config BitsAndBytesConfig(load_in_8bit=True)",
    },
}
"""Keys in a Python script's own calls, in place of those in `NAMES`."""
ALL_LINEAR = 'LoraConfig(target_modules="all-linear")'
FUSED_SINCE = "4.54"
"""The first version of transformers whose default optimizer is fused, with torch 2.8 on (training_args.py)."""


def default_optimizer(transformers: str) -> str:
    """The value of `optim` that a version of transformers has if none is set: fused, or over lists of all tensors."""
    return "adamw_torch_fused" if at_least(transformers, FUSED_SINCE) else "adamw_torch"


def trainer_fields(
    config: ConfigReader,
    micro_batch_size: int = 8,
    accumulation: int | None = 1,
    batch_keys: tuple[str, ...] = (BATCH_KEY,),
    fsdp_version: int = fsdp.VERSION,
    fsdp_presets: Mapping[str, dict[str, Any]] | None = None,
    optimizer: str = "adamw_torch_fused",
) -> dict[str, Any]:
    """Fields that all Trainer-based frameworks set by the same keys: not dtypes, checkpointing and length.

    `micro_batch_size`, `accumulation` and `optimizer` are the framework's defaults, None if one depends on other
    fields; `batch_keys` are its keys for the micro-batch, `fsdp_presets` configurations that `fsdp` may name.
    """
    refuse_unmodelled(config)
    if all(config.lowercase(name, default="false") in TRUE for name in ("bf16", "fp16")):
        raise config.invalid(("fp16",), "false beside bf16: transformers takes one of both")
    job: dict[str, Any] = {
        "loop": "trainer",
        "micro_batch_size": config.integer(*batch_keys, default=micro_batch_size),
        "optimizer": config.lowercase("optim", default=optimizer),
    }
    if not config.has(*batch_keys):
        config.note("default", batch_keys[0], f"not set: {micro_batch_size}")
    if accumulation is not None or config.has("gradient_accumulation_steps"):
        job["gradient_accumulation_steps"] = config.integer("gradient_accumulation_steps", default=accumulation or 1)
    if config.boolean("use_liger_kernel", default=False):
        job |= liger_fields(config.section("liger_kernel_config"))
    job["batches"] = "padded" if job["micro_batch_size"] > 1 else "unpadded"
    if config.source.spelling == "python" and config.boolean("prepare_for_kbit_training", default=False):
        job["prepare_for_kbit_training"] = True
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        kwargs = config.section(name)
        if kwargs is not None and kwargs.source.settings.keys() - {"use_reentrant", "preserve_rng_state"}:
            raise config.unsupported(name)
    return job | zero_config.referenced(config) | fsdp.referenced(config, fsdp_version, fsdp_presets)


def adapter_fields(
    config: ConfigReader,
    *rank_keys: str,
    default_rank: int = 8,
    dropout_keys: tuple[str, ...] = ("lora_dropout",),
    default_dropout: float = 0.0,
) -> dict[str, Any]:
    """Rank and dropout of an adapter, by the framework's keys and defaults."""
    return {
        "lora_rank": config.integer(*rank_keys, default=default_rank),
        "lora_dropout": config.number(*dropout_keys, default=default_dropout),
    }


def quantization_fields(config: ConfigReader, dtype: str, job: dict[str, Any]) -> dict[str, Any]:
    """Bitsandbytes in four or eight bits by TRL's keys; double quantization only if it is set.

    Raises:
        UnsupportedError: if four-bit layers compute in another dtype than the other layers.
    """
    if not config.boolean("load_in_4bit", default=False):
        return {"quantize": "int8"} if config.boolean("load_in_8bit", default=False) else {}
    compute_dtype = read_dtype(config, "bnb_4bit_compute_dtype") or dtype
    if dtype == "fp32" or compute_dtype != dtype:
        name = (
            "bnb_4bit_compute_dtype"
            if compute_dtype != "bf16" and config.has("bnb_4bit_compute_dtype")
            else "load_in_4bit"
        )
        raise config.unsupported(
            name,
            f"computing in {compute_dtype} over other weights in {dtype} is not modelled yet: set dtype (torch_dtype"
            " before transformers 4.56) to bfloat16",
        )
    return {
        "quantize": "nf4",
        "double_quant": config.boolean("use_bnb_nested_quant", default=False),
    } | quant_storage_field(config, job)


def quant_storage_field(config: ConfigReader, job: dict[str, Any]) -> dict[str, str]:
    """The dtype that four-bit weights are packed in (uint8 by default), if it decides whether an engine shards them."""
    storage = config.lowercase("bnb_4bit_quant_storage", default="uint8")
    if storage not in (*DTYPES, "uint8"):
        raise config.unsupported("bnb_4bit_quant_storage")
    return {"quant_storage": DTYPES.get(storage, storage)} if job.get("strategy") in ("fsdp", "zero3") else {}


def extra_adapter_fields(config: ConfigReader, dora: str, saved_modules: str) -> dict[str, Any]:
    """DoRA and fully trained modules, by the framework's keys."""
    job: dict[str, Any] = {"method": "dora"} if config.boolean(dora, default=False) else {}
    modules = tuple(word for item in config.strings(saved_modules) for word in item.split())
    return job | ({"modules_to_save": modules} if modules else {})


def reentrant_fields(config: ConfigReader, job: dict[str, Any], default: bool, outside: bool = False) -> dict[str, Any]:
    """Whether checkpointing is reentrant, if that changes memory.

    It does for int8 layers, whose inputs only reentrant checkpointing drops, under ZeRO-3 with adapters, where what a
    layer recomputes with stays gathered, and under FSDP 1 if checkpointing wraps the layers from outside.
    """
    if job["checkpointing"] != "full":
        return {}
    fsdp = job.get("fsdp", {})
    outside &= fsdp.get("version") == 1
    gathers = job.get("strategy") == "zero3" and job.get("method") != "full"
    if job.get("quantize") != "int8" and not gathers and not outside:
        return {}
    kwargs = config.section("gradient_checkpointing_kwargs")
    reentrant = default if kwargs is None else kwargs.boolean("use_reentrant", default=default)
    return {"reentrant": reentrant} | (
        {"fsdp": fsdp | {"checkpoint_wraps_fsdp": True}} if outside and reentrant else {}
    )


def fsdp_loading_fields(job: dict[str, Any], before_5: bool) -> dict[str, Any]:
    """Transformers < 5 loads a quantized base model to the host under FSDP (_load_state_dict_into_meta_model)."""
    if not before_5 or "quantize" not in job or job.get("strategy") != "fsdp":
        return {}
    return {"fsdp": job["fsdp"] | {"loads_whole_model": False}}


def device_map_field(job: dict[str, Any]) -> dict[str, bool]:
    """The device_map that most frameworks pass to from_pretrained unless an engine shards weights while loading."""
    return {} if job.get("strategy") in ("zero3", "fsdp") else {"device_map": True}


def vision_fields(method: str) -> dict[str, str]:
    """Vision tower and projector of a framework that does not freeze them: they train, or get adapters too."""
    return dict.fromkeys(("vision", "projector"), "train" if method == "full" else "lora")


def experts_field(before_5: bool) -> dict[str, str]:
    """MoE experts are separate linear layers in transformers < 5."""
    return {"experts": "linear"} if before_5 else {}


def checkpoints_outside(transformers: str) -> bool:
    """Whether this version wraps a layer to checkpoint it; not since 4.52 (GradientCheckpointingLayer)."""
    return not at_least(transformers, "4.52")


def leaf_module_fields(job: dict[str, Any]) -> dict[str, Any]:
    """ms-swift and LLaMA-Factory make each MoE block one leaf module of ZeRO-3 (set_z3_leaf_modules)."""
    return {"zero": {**job.get("zero", {}), "leaf_mixtures": True}} if job.get("strategy") == "zero3" else {}


def autocast_dtype(config: ConfigReader) -> str:
    """Autocast's dtype, or none."""
    return next((name for name in ("bf16", "fp16") if config.boolean(name, default=False)), "none")


def read_checkpointing(config: ConfigReader) -> str:
    """Full or none; notes that it is off by default."""
    if config.boolean("gradient_checkpointing", "activation_checkpointing", default=False):
        return "full"
    if not config.has("gradient_checkpointing", "activation_checkpointing"):
        config.note("default", "gradient_checkpointing", "not set: every layer keeps its activations")
    return "none"


def eval_batch_size(config: ConfigReader, micro_batch_size: int, runs: bool) -> int | None:
    """Samples in an evaluation's forward; None if none is run."""
    size = config.integer("per_device_eval_batch_size", default=micro_batch_size)
    strategy = config.lowercase("eval_strategy", "evaluation_strategy", default="steps" if runs else "no")
    return None if strategy == "no" or not runs else size


def attention_field(config: ConfigReader, *names: str) -> dict[str, str]:
    """The attention kernel, if the first set key of `names` chooses one."""
    kernel = config.lowercase(*names, default="")
    if not kernel:
        return {}
    if kernel not in ATTENTION:
        name = next(name for name in names if config.has(name))
        raise config.unsupported(name, f"is not modelled; modelled: {', '.join(sorted(ATTENTION))}")
    return {"attention": ATTENTION[kernel]} if ATTENTION[kernel] else {}


def read_dtype(config: ConfigReader, *names: str) -> str | None:
    """The dtype that a key names; None if it is not set or "auto", the checkpoint's own."""
    name = config.lowercase(*names, default="auto")
    if name == "auto":
        return None
    if name not in DTYPES:
        raise config.invalid(names, f"a dtype ({', '.join(sorted(set(DTYPES)))})")
    return DTYPES[name]


def published_dtype(config: ConfigReader) -> str | None:
    """The dtype of the checkpoint, if the model is known."""
    model = config.source.model
    dtype = None if model is None else model.published_dtype
    if dtype == "fp16" and read_dtype(config, "bnb_4bit_compute_dtype") == "bf16":
        return "bf16"  # as large; the copies cast for a matmul are freed with it
    return dtype


def checkpoint_dtype(config: ConfigReader, key: str, loads: str) -> str:
    """The dtype of the checkpoint, which `loads` keeps, with a note on the assumption."""
    dtype = published_dtype(config)
    assumption = "taken as bf16; fp32 would take twice as much" if dtype is None else f"{dtype} here"
    prefix = "" if config.has(key) else "not set: "
    config.note("warning", key, f"{prefix}{loads} the checkpoint's own dtype, {assumption}")
    return dtype or "bf16"


def gpus_and_device_map(
    config: ConfigReader, num_gpus: int, count_processes: Callable[[ConfigReader, int], int]
) -> dict[str, Any]:
    """The number of GPUs by `count_processes`, and whether a ``device_map`` places the model on several of them.

    Raises:
        ConfigError: for a device_map over several GPUs in several processes.
        UnsupportedError: for a device_map other than auto over several GPUs.
    """
    config.read_keys.add("device_map")
    setting = config.source.settings.get("device_map")  # not get(): a value that only a run tells counts as one GPU
    device_map = setting.value if setting is not None else None
    launched = is_launched(config)
    if device_map not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return {"num_gpus": count_processes(config, num_gpus)} | ({} if device_map is None else {"device_map": True})
    count = count_processes(config, num_gpus) if launched else visible_gpus(config, num_gpus)
    if count == 1:
        return {"num_gpus": 1, "device_map": True}
    if launched:
        raise ConfigError(
            f"{config.place('device_map')}: device_map {device_map} in {count} processes: accelerate refuses to train"
            " what is spread over GPUs there; leave device_map out"
        )
    if device_map not in ("auto", "balanced"):
        raise config.unsupported("device_map", f"{device_map} over {count} GPUs is not modelled yet; modelled: auto")
    return {"strategy": "device_map", "num_gpus": count}


def num_processes(config: ConfigReader, num_gpus: int) -> int:
    """Processes that a launcher starts, one for each GPU; 1 without a launcher."""
    launched = config.source.settings.get("nproc_per_node") or config.source.settings.get("num_processes")
    config.read_keys |= {"nproc_per_node", "num_processes", "nnodes", "num_machines"}
    if launched is None:
        visible = visible_gpus(config, num_gpus)
        if visible > 1:
            raise UnsupportedError(
                f"{visible} GPUs are visible and no launcher is used: transformers runs DataParallel, which is not"
                f" modelled; use torchrun --nproc_per_node {visible}, or CUDA_VISIBLE_DEVICES=0"
            )
        return 1
    if str(launched.value) in ("all", "gpu", "auto", "-1"):
        return visible_gpus(config, num_gpus)
    return config.integer("nproc_per_node", "num_processes", default=1) * config.integer("nnodes", default=1)


def num_launched_processes(config: ConfigReader, num_gpus: int) -> int:
    """Processes that a launcher starts, for commands that start one for each visible GPU by default."""
    return num_processes(config, num_gpus) if is_launched(config) else visible_gpus(config, num_gpus)


def is_launched(config: ConfigReader) -> bool:
    """Whether a launcher, such as torchrun, starts the processes."""
    return bool({"nproc_per_node", "num_processes"} & config.source.settings.keys())


LAYER_PREFIXES = ("model.layers.", "model.language_model.layers.", "language_model.model.layers.", "layers.")
LAYER_NUMBERS = (0, 1, 2, 3, 5, 7, 9, 10, 15, 20)
"""Layers that an expression has to treat alike."""
LINEAR_LAYERS = tuple(f"self_attn.{name}_proj" for name in "qkvo") + tuple(
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
)
TOWER_PREFIXES = ("model.visual.blocks.", "visual.blocks.", "model.vision_tower.vision_model.encoder.layers.",
                  "vision_tower.vision_model.encoder.layers.", "model.vision_model.encoder.layers.")  # fmt: skip
TOWER_LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.gate_proj", "self_attn.q_proj", "self_attn.out_proj")
"""Some of a vision tower's layers, by which an expression for a text model's is told apart."""


def read_image_caps(config: ConfigReader, parsed: ParsedConfig) -> None:
    """Add the caps on images that a script sets on its processor, which applies them itself."""
    if config.source.spelling == "python":
        names = [name for name in ("min_pixels", "max_pixels") if config.has(name)]
        parsed.job |= {name: config.integer(name, default=1) for name in names}
        parsed.names = {**parsed.names, "max_pixels": "max_pixels"}
        parsed.resizes_images = False


def lora_targets(config: ConfigReader, key: str) -> tuple[str, ...] | None:
    """The layers that get an adapter, by name or by PEFT's regular expression; None for all-linear.

    Raises:
        UnsupportedError: for an expression that matches none of a decoder's usual layers.
    """
    names = config.strings(key)
    value = config.get(key)
    if not names or names == ("all-linear",):
        return None
    if value is None or isinstance(value.value, list):
        return names
    if not set("[](|*\\+^") & set(str(value.value)):
        if config.framework == "trl" or config.source.spelling == "python":  # TRL: ModelConfig.__post_init__
            raise config.unsupported(
                key,
                f"alone is an expression to PEFT, for the whole path of a layer, and matches none; write .*{names[0]}",
            )
        return names
    try:
        matched, _ = layers_of_pattern(str(value.value))
    except re.error:
        raise config.invalid((key,), "names, or a regular expression with few repeats") from None
    if matched == {()}:
        raise config.unsupported(key, "means none of the layers that are known by name; give names")
    if len(matched) > 1:
        raise config.unsupported(key, "means single layers of the model, which is not modelled yet; give names")
    return matched.pop()


def layers_of_pattern(pattern: str) -> tuple[set[tuple[str, ...]], set[str]]:
    """Names of a decoder's usual linear layers that an expression means, and of a vision tower's.

    The former are those of one layer; several, if layers differ.

    Raises:
        re.error: for an expression that is none, or whose matching may take long.
    """
    expression = compiled(pattern)
    matched = {
        tuple(
            module.rpartition(".")[2]
            for module in LINEAR_LAYERS
            if any(expression.fullmatch(f"{prefix}{number}.{module}") for prefix in LAYER_PREFIXES)
        )
        for number in LAYER_NUMBERS
    }
    seeing = {
        name.rpartition(".")[2]
        for name in TOWER_LAYERS
        if any(expression.fullmatch(f"{prefix}0.{name}") for prefix in TOWER_PREFIXES)
    }
    return matched, seeing
