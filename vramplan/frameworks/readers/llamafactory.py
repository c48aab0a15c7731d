"""LLaMA-Factory: ``llamafactory-cli train`` and its YAML (0.9; llamafactory/hparams, model/adapter.py)."""

from __future__ import annotations

from math import prod

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.liger import ALL_KERNELS
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, hold_back, num_started_processes, resolve_version
from vramplan.frameworks.readers import saved_adapters
from vramplan.frameworks.readers.llamafactory_tasks import (
    STAGES,
    WRITTEN,
    ppo_fields,
    refuse_reference,
    refuse_stage,
    stage_pairs,
    task_fields,
)
from vramplan.frameworks.readers.saved_adapters import LoraKeys
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    adapter_fields,
    attention_field,
    autocast_dtype,
    default_optimizer,
    device_map_field,
    eval_batch_size,
    experts_field,
    extra_adapter_fields,
    fsdp_loading_fields,
    leaf_module_fields,
    num_launched_processes,
    num_processes,
    published_dtype,
    reentrant_fields,
    trainer_fields,
)
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader, ConfigSource
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import ConfigText, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, batch_and_optimizer, half_precision
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "llamafactory", "0.9.5"
MAX_PIXELS, MIN_PIXELS = 768 * 768, 32 * 32
"""image_max_pixels and image_min_pixels (model_args.py): every image is resized before the model's processor."""
VIDEO_PIXELS = 256 * 256
"""video_max_pixels."""
FORMER_SCRIPTS = ("src/train_bash.py", "src/train_wandb.py")
"""Its training scripts up to 0.7, of one process unless a launcher starts more."""
SHIPPED = "examples/deepspeed/ds_z{}_config.json"
"""DeepSpeed's configurations in its repository."""


SAVED = LoraKeys(
    "adapter_name_or_path", "lora_rank", "lora_target", "use_dora", "additional_target", inner="adapter_folder"
)
"""Its keys for adapters."""
LIGER_TYPES = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "glm4v", "gpt_oss", "granite", "llama", "llava"),
        *("mistral", "mixtral", "mllama", "olmo2", "paligemma", "phi3"),
        *("qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe"),
    }
)
"""Types of models that it hands to Liger (model/model_utils/liger_kernel.py); stages pt and sft need no logits."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a LLaMA-Factory configuration."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    if framework_version is None and config.source.program.endswith(FORMER_SCRIPTS):
        version, where = "0.7.0", "by its script"
    _require_training(config)
    stage = config.lowercase("stage", default="sft")
    if stage not in ("sft", "pt", "ppo", *STAGES):
        raise refuse_stage(config, stage)
    config.require_off("train_from_scratch", True, "true")
    method = config.lowercase("finetuning_type", default="lora")
    if method not in ("lora", "full"):
        raise config.unsupported("finetuning_type")
    before_5 = not at_least(version, "0.9.4")  # its requirements: transformers up to 4.52.4
    job = trainer_fields(config, optimizer=default_optimizer("4.52.4" if before_5 else "4.57"))
    job["method"] = method
    job |= leaf_module_fields(job) | experts_field(before_5)
    job |= _dtypes(config, method, version, job.get("strategy") == "zero3")
    goes_on = _goes_on(config, job)
    if goes_on:
        job |= saved_adapters.fields_of(config, SAVED)
    elif method == "lora":
        job |= adapter_fields(config, "lora_rank")
        targets = config.strings("lora_target")
        if targets and targets != ("all",):
            job["lora_targets"] = targets
        job |= extra_adapter_fields(config, "use_dora", "additional_target")
    if method == "lora" and "modules_to_save" in job and job.get("lora_dtype") == "fp32":
        job["saved_dtype"] = "fp32"  # as all trained weights (adapter.py: cast_trainable_params_to_fp32)
    if config.boolean("upcast_layernorm", default=False):
        job["fp32_norms"] = True
    bits = config.integer("quantization_bit", default=0, least=0)
    if bits:
        if bits not in (4, 8):
            raise config.unsupported("quantization_bit")
        if config.lowercase("quantization_method", default="bnb") not in ("bnb", "bitsandbytes"):
            raise config.unsupported("quantization_method")
        double_quant = config.boolean("double_quantization", default=True)
        job |= {"quantize": "int8"} if bits == 8 else {"quantize": "nf4", "double_quant": double_quant}
        job |= fsdp_loading_fields(job, before_5)
    if "vision" not in job:  # adapters that are loaded say it themselves
        job |= _parts(config, method)
    job["checkpointing"] = "none" if config.boolean("disable_gradient_checkpointing", default=False) else "full"
    job |= reentrant_fields(config, job, config.boolean("use_reentrant_gc", default=True))
    if config.has("gradient_checkpointing") and not config.boolean("gradient_checkpointing", default=True):
        config.note(
            "warning", "gradient_checkpointing", "is not what LLaMA-Factory asks: disable_gradient_checkpointing is"
        )
    if config.lowercase("flash_attn", default="") in TRUE:  # a flag up to 0.5: FlashAttention-2
        job["attention"] = "flash"
    elif config.lowercase("flash_attn", default="") not in (*FALSE, "off"):
        job |= attention_field(config, "flash_attn")
    elif config.lowercase("flash_attn", default="") == "off":  # 0.6 to 0.8 (model/utils/attention.py)
        job["attention"] = "eager"
    if config.boolean("enable_liger_kernel", default=False):
        job |= ALL_KERNELS
    longest = 2048 if at_least(version, "0.9.1") else 1024
    job["sequence_length"] = config.integer("cutoff_len", default=longest)
    if not config.has("cutoff_len"):
        config.note("default", "cutoff_len", f"not set: {longest}")
    is_neat = config.boolean("neat_packing", default=False)
    packs = is_neat or (config.boolean("packing", default=stage == "pt") and stage in ("sft", "pt"))
    if packs:
        job["batches"] = "unpadded"  # rows of cutoff_len tokens, full to the end
    if is_neat:
        _check_neat_packing(config, job, version)
        job["batches"] = "packed"  # a row of at most cutoff_len - 1 tokens with its position ids, and no mask
    job |= {
        "max_pixels": config.integer("image_max_pixels", default=MAX_PIXELS),
        "min_pixels": config.integer("image_min_pixels", default=MIN_PIXELS),
    }
    if not config.boolean("crop_to_patches", default=False):
        job["max_tiles"] = 1
    job["num_gpus"] = _num_processes(config, num_gpus)
    if config.boolean("low_cpu_mem_usage", default=True):
        job |= device_map_field(job)  # model/patcher.py: patch_config
    if job["num_gpus"] == 1 and config.has("deepspeed") and config.variable("FORCE_TORCHRUN") is None:
        config.note("warning", "deepspeed", "on one GPU LLaMA-Factory stops at it without FORCE_TORCHRUN=1")
    names = NAMES | {
        "sequence_length": "cutoff_len",
        "checkpointing": {"full": "disable_gradient_checkpointing false"},
        "attention": {"sdpa": "flash_attn sdpa", "flash": "flash_attn fa2"},
        "loss": {"liger": "enable_liger_kernel true"},
        "method": {"lora": "finetuning_type lora"},
        "dtype": {"bf16": "pure_bf16 true; bf16 false"},
        "autocast": {"fp16": f"{'pure_bf16' if config.has('pure_bf16') else 'bf16'} false; fp16 true"},
        "quantize": {"nf4": "quantization_bit 4", "int8": "quantization_bit 8"},
        "strategy": {"zero3": f"deepspeed {SHIPPED.format('3')}"},
        "offload": {
            "all"
            if job.get("strategy") == "zero3"
            else "optimizer": f"deepspeed {SHIPPED.format(str(job.get('strategy'))[-1] + '_offload')}",
        },
    }
    refuse_reference(config, stage)
    model = config.string("model_name_or_path") or ""
    if stage == "ppo":
        job |= ppo_fields(config, job)
        del names["loss"]
    if stage in STAGES:
        job |= task_fields(config, stage, version, job)
        del names["loss"]  # Liger's loss is for stages that need no logits
    parsed = ParsedConfig("llamafactory", f"{version} ({where})", model, job, names, config.notes)
    parsed.liger_types = LIGER_TYPES
    parsed.rows = "packed" if packs else "samples"
    parsed.task = {"sft": "SFT", "pt": "pretraining"}.get(stage, stage.upper())
    held_back = config.number("val_size", default=0.0)
    parsed.num_train_samples = hold_back(
        held_back, config.integer("max_samples", default=1) if config.has("max_samples") else None
    )
    evaluates = held_back > 0 or config.has("eval_dataset")
    parsed.eval_batch_size = eval_batch_size(config, 8, evaluates)
    parsed.expandable = job["num_gpus"] > 1
    parsed.video_sampling = _sampling(config)
    return parsed


NOT_TRAINING = {
    "export_dir": "merges an adapter into its model",
    "do_predict": "predicts",
    "do_eval": "evaluates",
    "infer_backend": "chats with a model",
    "infer_dtype": "chats with a model",
}
"""Keys of files for its other commands, and for its training command without do_train."""


def _require_training(config: ConfigReader) -> None:
    """Refuse a file that trains nothing: without do_train only its other keys count (train/sft/workflow.py).

    Raises:
        ConfigError: naming the key that says what the file is for.
    """
    doing = {key: text for key, text in NOT_TRAINING.items() if not config.is_off(key)}
    if config.has("adapter_name_or_path") and not config.has("dataset", "per_device_train_batch_size"):
        doing |= {"adapter_name_or_path": "chats with a model"}
    if doing and not config.boolean("do_train", default=False):
        key, text = next(iter(doing.items()))
        raise ConfigError(
            f"{config.place(key)}: {key}: without do_train: true this file {text} and trains nothing;"
            " check the file of the training"
        )


def _goes_on(config: ConfigReader, job: dict[str, object]) -> bool:
    """Whether training goes on with adapters, the last of those that are named, by their own rank and layers.

    With create_new_adapter all of them are merged first, and lora_rank and lora_target count; not into quantized
    weights, at which it stops then, and not under ZeRO-3 (0.9.5, model/adapter.py, hparams/parser.py).

    Raises:
        ConfigError: for what LLaMA-Factory stops at.
    """
    if not saved_adapters.names(config, SAVED.folder):
        return False
    if job["method"] != "lora":
        raise ConfigError(
            f"{config.place(SAVED.folder)}: {SAVED.folder}: LLaMA-Factory stops at adapters with finetuning_type full"
        )
    adds = config.boolean("create_new_adapter", default=False)
    several = len(saved_adapters.names(config, SAVED.folder)) > 1
    quantizes, is_zero3 = config.integer("quantization_bit", default=0, least=0) > 0, job.get("strategy") == "zero3"
    if (quantizes and (adds or several)) or (is_zero3 and several):
        on = "quantized weights" if quantizes else "ZeRO-3"
        what = "several adapters" if several else "create_new_adapter beside adapters"
        raise ConfigError(f"{config.place(SAVED.folder)}: {SAVED.folder}: LLaMA-Factory stops at {what} with {on}")
    return is_zero3 or not adds


def _check_neat_packing(config: ConfigReader, job: dict[str, object], version: str) -> None:
    """Refuse neat_packing unless a row has no mask: FlashAttention-2, one row a batch (data/collator.py, 0.9.5).

    Raises:
        ConfigError: if LLaMA-Factory stops at it.
        UnsupportedError: if a row has a mask of its own.
    """
    if config.lowercase("stage", default="sft") != "sft":  # hparams/parser.py
        raise ConfigError(f"{config.place('neat_packing')}: neat_packing: LLaMA-Factory stops at it except in SFT")
    if job.get("attention") != "flash":
        raise config.unsupported(
            "neat_packing", "without flash_attn: fa2 masks each row, which is not modelled yet; set flash_attn: fa2"
        )
    if not at_least(version, "0.9.5"):
        raise config.unsupported("neat_packing", "before LLaMA-Factory 0.9.5 is not modelled yet")
    if job["micro_batch_size"] != 1:
        raise ConfigError(
            f"{config.place('neat_packing')}: neat_packing: with flash_attn: fa2 LLaMA-Factory stops at it unless"
            " per_device_train_batch_size is 1"
        )


def _dtypes(config: ConfigReader, method: str, version: str, is_zero3: bool) -> dict[str, str]:
    """Weights in the checkpoint's dtype; trained ones become fp32, unless pure_bf16 or ZeRO-3 (adapter.py)."""
    autocast = autocast_dtype(config)
    if config.boolean("pure_bf16", default=False):
        if is_zero3:  # hparams/parser.py
            raise ConfigError(
                f"{config.place('pure_bf16')}: pure_bf16: LLaMA-Factory stops at it under ZeRO-3; bf16: true"
            )
        return {"dtype": "bf16", "autocast": "none"} | ({"lora_dtype": "bf16"} if method == "lora" else {})
    if autocast == "none":
        config.note(
            "warning", "bf16", "neither bf16 nor fp16 is set: what trains is fp32, and nothing runs in half precision"
        )
    if is_zero3:
        return {"dtype": "bf16" if autocast == "none" else autocast}
    if method == "full":
        if autocast != "none":
            hint = "; pure_bf16 takes 8" if config.source.supports_bf16 else ""
            config.note("warning", autocast, f"trains fp32 weights under autocast: 16 bytes a parameter{hint}")
        return {"dtype": "fp32", "autocast": autocast}
    if autocast != "none" and not at_least(version, "0.9.4"):
        weights_dtype = autocast
    else:
        weights_dtype = published_dtype(config) or "bf16"
        if autocast not in ("none", weights_dtype):
            config.note(
                "warning",
                autocast,
                f"the checkpoint's frozen weights stay {weights_dtype}: each is cast to {autocast} for its use",
            )
    return {"dtype": weights_dtype, "autocast": autocast, "lora_dtype": "fp32"}


def _parts(config: ConfigReader, method: str) -> dict[str, str]:
    job: dict[str, str] = {}
    if not config.boolean("freeze_vision_tower", default=True):
        job["vision"] = "train" if method == "full" else "lora"
    if not config.boolean("freeze_multi_modal_projector", default=True) and method == "full":
        job["projector"] = "train"  # LoRA's "all" never takes the projector
    return job


def _sampling(config: ConfigReader) -> Sampling:
    """Frames are resized like images, before the model's own video processor (data/mm_plugin.py)."""
    keys = tuple(name for name in ("video_maxlen", "video_max_pixels") if config.has(name))
    frames = config.integer("video_maxlen", default=1) if "video_maxlen" in keys else None
    return Sampling(frames, config.integer("video_max_pixels", default=VIDEO_PIXELS), keys=keys)


def _num_processes(config: ConfigReader, num_gpus: int) -> int:
    """One process for each visible GPU (launcher.py), or as many as NPROC_PER_NODE says."""
    started = num_started_processes(config, num_gpus)
    if started is not None:
        return started
    if config.source.program.endswith(FORMER_SCRIPTS):
        return num_processes(config, num_gpus)
    return num_launched_processes(config, num_gpus)


def write(model: str, job: Job) -> ConfigText:
    """LLaMA-Factory's YAML."""
    pairs = {
        "model_name_or_path": model,
        **stage_pairs(job),
        "do_train": True,
        "finetuning_type": "full" if job.method == "full" else "lora",
        **batch_and_optimizer(job),
        "cutoff_len": job.sequence_length,
        **adapter(job, "lora_rank", "lora_target", "all", "use_dora", "additional_target"),
        "flash_attn": "fa2" if job.attention == "flash" else "disabled" if job.attention == "eager" else "sdpa",
    }
    for key in ("lora_target", "additional_target"):
        if isinstance(pairs.get(key), list):
            pairs[key] = ",".join(pairs[key])
    pure = (
        job.method == "full" and job.dtype == "bf16" and not job.strategy.startswith("zero")
    )  # DeepSpeed casts the model itself
    pairs["pure_bf16" if pure else "fp16" if half_precision(job) == "fp16" else "bf16"] = True
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
    pairs |= sharding(job)
    variables = nodes.variables(job) if job.num_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    variables |= {"FORCE_TORCHRUN": "1"} if "deepspeed" in pairs or job.num_nodes > 1 else {}
    command = "llamafactory-cli train train.yaml"
    return ConfigText(pairs, variables | allocator_variables(job), command, file="train.yaml", notes=nodes.notes(job))


def _stops_at_unknown(source: ConfigSource) -> bool:
    """Whether a key that is not known stops it (0.9.5, hparams/parser.py: _parse_args, is_env_enabled)."""
    allows = source.environment.get("ALLOW_EXTRA_ARGS")
    return allows is None or str(allows.value).lower() not in ("true", "y", "1")


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(
        ("llamafactory-cli", "train"),
        ("lmf", "train"),
        ("src/train.py",),
        *((name,) for name in FORMER_SCRIPTS),
        ("src/llamafactory/launcher.py",),
    ),
    task_keys=("stage",),
    stops_at_duplicates=True,  # OmegaConf.load (hparams/parser.py)
    stops_at_unknown=_stops_at_unknown,
    unknown_key="is no argument of LLaMA-Factory, which stops at it (unless ALLOW_EXTRA_ARGS is set)",
    marks=frozenset({"finetuning_type", "stage", "cutoff_len", "lora_target", "template", "pure_bf16", "dataset_dir"}),
    inherits=("transformers",),
    variables=frozenset({"ALLOW_EXTRA_ARGS", "FORCE_TORCHRUN"}),
    overrides="pairs",  # hparams/parser.py: OmegaConf.from_cli
    expands_all_linear=True,
    writers=(Writer("llamafactory", write, tuple(name for name in ENGINES if name != "fsdp"), tasks=WRITTEN),),
)
