"""LLaMA-Factory: ``llamafactory-cli train`` and its YAML (0.9; llamafactory/hparams, model/adapter.py)."""

from __future__ import annotations

from math import prod

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, settle, started, without
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    adapters,
    arguments,
    attention,
    beside,
    evaluation,
    experts,
    half_of,
    launched,
    leaves,
    loaded,
    mapped,
    published,
    reentrant,
)
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, batch_and_optimizer, half_precision
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "llamafactory", "0.9.5"
MAX_PIXELS, MIN_PIXELS = 768 * 768, 32 * 32
"""image_max_pixels and image_min_pixels (model_args.py): every image is resized before any processor sees it."""
VIDEO_PIXELS = 256 * 256
"""video_max_pixels."""
SHIPPED = "examples/deepspeed/ds_z{}_config.json"
"""DeepSpeed's configurations in its repository."""


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a LLaMA-Factory configuration."""
    version, where = settle(PACKAGE, asked, NEWEST)
    keys.only("stage", "sft", "pt", why="is not modelled yet; modelled: sft, pt")
    keys.only("train_from_scratch", True, "true")
    method = keys.text("finetuning_type", default="lora")
    if method not in ("lora", "full"):
        raise keys.refuse("finetuning_type")
    job = arguments(keys)
    job["method"] = method
    before_5 = not at_least(version, "0.9.4")  # its requirements: transformers up to 4.52.4
    job |= leaves(job) | experts(before_5)
    job |= _dtypes(keys, method, version, job.get("strategy") == "zero3")
    if method == "lora":
        job |= adapters(keys, "lora_rank")
        targets = keys.names("lora_target")
        if targets and targets != ("all",):
            job["lora_targets"] = targets
        job |= beside(keys, "use_dora", "additional_target")
        if "modules_to_save" in job and job.get("lora_dtype") == "fp32":
            job["saved_dtype"] = "fp32"  # whatever trains (adapter.py: cast_trainable_params_to_fp32)
    if keys.flag("upcast_layernorm", default=False):
        job["fp32_norms"] = True
    bits = keys.count("quantization_bit", default=0, least=0)
    if bits:
        if bits not in (4, 8):
            raise keys.refuse("quantization_bit")
        if keys.text("quantization_method", default="bnb") not in ("bnb", "bitsandbytes"):
            raise keys.refuse("quantization_method")
        double = keys.flag("double_quantization", default=True)
        job |= {"quantize": "int8"} if bits == 8 else {"quantize": "nf4", "double_quant": double}
        job |= loaded(job, before_5)
    job |= _parts(keys, method)
    job["checkpointing"] = "none" if keys.flag("disable_gradient_checkpointing", default=False) else "full"
    job |= reentrant(keys, job, keys.flag("use_reentrant_gc", default=True))
    if keys.has("gradient_checkpointing") and not keys.flag("gradient_checkpointing", default=True):
        keys.note(
            "warning", "gradient_checkpointing", "is not what LLaMA-Factory asks: disable_gradient_checkpointing is"
        )
    job |= attention(keys, "flash_attn")
    if keys.flag("enable_liger_kernel", default=False):
        job["loss"] = "liger"
    job["sequence_length"] = keys.count("cutoff_len", default=2048)
    if not keys.has("cutoff_len"):
        keys.note("default", "cutoff_len", "not set: 2048")
    packs = keys.flag("packing", default=keys.text("stage", default="sft") == "pt")
    if packs:
        job["batches"] = "unpadded"  # rows of cutoff_len tokens, full to the end
    job |= {
        "max_pixels": keys.count("image_max_pixels", default=MAX_PIXELS),
        "min_pixels": keys.count("image_min_pixels", default=MIN_PIXELS),
    }
    if not keys.flag("crop_to_patches", default=False):
        job["max_tiles"] = 1
    job["num_gpus"] = _ranks(keys, cards)
    if keys.flag("low_cpu_mem_usage", default=True):
        job |= mapped(job)  # model/patcher.py: patch_config
    if job["num_gpus"] == 1 and keys.has("deepspeed") and keys.variable("FORCE_TORCHRUN") is None:
        keys.note("warning", "deepspeed", "on one card LLaMA-Factory stops at it without FORCE_TORCHRUN=1")
    names = NAMES | {
        "sequence_length": "cutoff_len",
        "checkpointing": {"full": "disable_gradient_checkpointing false"},
        "attention": {"sdpa": "flash_attn sdpa", "flash": "flash_attn fa2"},
        "loss": {"liger": "enable_liger_kernel true"},
        "method": {"lora": "finetuning_type lora"},
        "dtype": {"bf16": "pure_bf16 true; bf16 false"},
        "autocast": {"fp16": f"{'pure_bf16' if keys.has('pure_bf16') else 'bf16'} false; fp16 true"},
        "quantize": {"nf4": "quantization_bit 4", "int8": "quantization_bit 8"},
        "strategy": {"zero3": f"deepspeed {SHIPPED.format('3')}"},
        "offload": {"optimizer": f"deepspeed {SHIPPED.format(str(job.get('strategy'))[-1] + '_offload')}"},
    }
    model = keys.name("model_name_or_path") or ""
    reading = ParsedConfig("llamafactory", f"{version} ({where})", model, job, names, keys.notes)
    reading.rows = "packed" if packs else "samples"
    held = keys.number("val_size", default=0.0)
    reading.taken = without(held, keys.count("max_samples", default=1) if keys.has("max_samples") else None)
    evaluates = held > 0 or keys.has("eval_dataset")
    reading.eval_batch_size = evaluation(keys, 8, evaluates)
    reading.expandable = job["num_gpus"] > 1
    reading.sampling = _sampling(keys)
    return reading


def _dtypes(keys: ConfigReader, method: str, version: str, is_zero3: bool) -> dict[str, str]:
    """Weights as the checkpoint has them; whatever trains becomes fp32, unless pure_bf16 or ZeRO-3 (adapter.py)."""
    half = half_of(keys)
    if keys.flag("pure_bf16", default=False):
        if is_zero3:  # hparams/parser.py
            raise ConfigError(
                f"{keys.place('pure_bf16')}: pure_bf16: LLaMA-Factory stops at it under ZeRO-3; bf16: true"
            )
        return {"dtype": "bf16", "autocast": "none"} | ({"lora_dtype": "bf16"} if method == "lora" else {})
    if half == "none":
        keys.note(
            "warning", "bf16", "neither bf16 nor fp16 is set: what trains is fp32, and nothing runs in half precision"
        )
    if is_zero3:
        return {"dtype": "bf16" if half == "none" else half}
    if method == "full":
        if half != "none":
            less = "; pure_bf16 takes 8" if keys.source.supports_bf16 else ""
            keys.note("warning", half, f"trains fp32 weights under autocast: 16 bytes a parameter{less}")
        return {"dtype": "fp32", "autocast": half}
    if half != "none" and not at_least(version, "0.9.4"):
        stored = half
    else:
        stored = published(keys) or "bf16"
        if half not in ("none", stored):
            keys.note(
                "warning", half, f"the checkpoint's frozen weights stay {stored}: each is cast to {half} for its use"
            )
    return {"dtype": stored, "autocast": half, "lora_dtype": "fp32"}


def _parts(keys: ConfigReader, method: str) -> dict[str, str]:
    job: dict[str, str] = {}
    if not keys.flag("freeze_vision_tower", default=True):
        job["vision"] = "train" if method == "full" else "lora"
    if not keys.flag("freeze_multi_modal_projector", default=True) and method == "full":
        job["projector"] = "train"  # LoRA's "all" never takes the projector
    return job


def _sampling(keys: ConfigReader) -> Sampling:
    """Frames are resized like images, before the model's own video processor sees them (data/mm_plugin.py)."""
    said = tuple(name for name in ("video_maxlen", "video_max_pixels") if keys.has(name))
    frames = keys.count("video_maxlen", default=1) if "video_maxlen" in said else None
    return Sampling(frames, keys.count("video_max_pixels", default=VIDEO_PIXELS), keys=said)


def _ranks(keys: ConfigReader, cards: int) -> int:
    """All visible cards, one process each (launcher.py); NPROC_PER_NODE takes fewer."""
    several = started(keys, cards)
    if several is not None:
        return several
    return launched(keys, cards)


def write(model: str, job: Job) -> ConfigText:
    """LLaMA-Factory's YAML."""
    pairs = {
        "model_name_or_path": model,
        "stage": "sft",
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
    pure = job.method == "full" and job.dtype == "bf16" and not job.strategy.startswith("zero")  # which casts itself
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
    variables = {"NPROC_PER_NODE": str(job.num_gpus)} if job.num_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    variables |= {"FORCE_TORCHRUN": "1"} if "deepspeed" in pairs else {}
    return ConfigText(
        pairs, variables | allocator_variables(job), "llamafactory-cli train train.yaml", file="train.yaml"
    )


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(
        ("llamafactory-cli", "train"),
        ("lmf", "train"),
        ("src/train.py",),
        ("src/llamafactory/launcher.py",),
    ),
    marks=frozenset({"finetuning_type", "stage", "cutoff_len", "lora_target", "template", "pure_bf16", "do_train"}),
    inherits=("transformers",),
    variables=frozenset({"FORCE_TORCHRUN"}),
    overrides="pairs",  # hparams/parser.py: OmegaConf.from_cli
    expands_all_linear=True,
    writers=(Writer("llamafactory", write, tuple(name for name in ENGINES if name != "fsdp")),),
)
