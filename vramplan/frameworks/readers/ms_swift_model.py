"""ms-swift's arguments of a model: dtypes, quantization, adapters, which parts train, attention, limits on images.

(2.6, 3.x, 4.x: swift/arguments/base_args.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.bounded_read import read_json
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers import saved_adapters
from vramplan.frameworks.readers.saved_adapters import LoraKeys
from vramplan.frameworks.readers.trainer_arguments import (
    adapter_fields,
    attention_field,
    autocast_dtype,
    extra_adapter_fields,
    quant_storage_field,
    read_dtype,
)
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader, shown
from vramplan.frameworks.syntax.lookup import beside
from vramplan.inputs.job_values import engine_casts

EMBEDDINGS = {"all-embedding": "embed_tokens", "embedding": "embed_tokens"}
"""Names of all embeddings in `modules_to_save` of versions 3 and 2."""
OWN_FILE = "additional_config.json"
"""What it saves beside PEFT's configuration of adapters (4.6, tuners/peft.py)."""
KEEPS_ADAPTER_DTYPE = "4.6"
"""The first version whose `lora_dtype` PEFT leaves as it is."""
MINICPM = "minicpm-v-4"
"""Part of the names of models whose template has limits of its own (swift 4.6, template/templates/minicpm.py)."""


def attention_fields(config: ConfigReader) -> dict[str, str]:
    """attn_impl; in 2.x use_flash_attn, which false makes eager (2.6.1, swift/llm/utils/model.py)."""
    if config.lowercase("use_flash_attn", default="") in (*TRUE, *FALSE):
        return {"attention": "flash" if config.boolean("use_flash_attn", default=False) else "eager"}
    return attention_field(config, "attn_impl", "use_flash_attn", "attn_implementation")


def dtype_fields(config: ConfigReader, method: str) -> dict[str, str]:
    """`torch_dtype` also chooses autocast; fp32 weights get fp16 autocast (sft_args.py)."""
    stored_dtype = read_dtype(config, "torch_dtype", "dtype")
    if stored_dtype is None:
        model = config.source.model
        published = None if model is None else model.config_dtype
        assumption = "taken as bf16" if published is None else published
        config.note("default", "torch_dtype", f"not set: the one that config.json names, {assumption}")
        stored_dtype = published or "bf16"
    autocast = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp16"}[stored_dtype]
    if config.has("bf16", "fp16"):
        autocast = autocast_dtype(config)
    if stored_dtype == "fp32" and autocast == "fp16":
        config.note("warning", "torch_dtype", "float32 weights make ms-swift train under fp16 autocast, not bf16")
    if stored_dtype == "fp16" and method == "full":
        stored_dtype = "fp32"
    return {"dtype": stored_dtype, "autocast": autocast}


def quantized_fields(config: ConfigReader, needs_method: bool, job: dict[str, Any]) -> dict[str, Any]:
    """Bitsandbytes in four or eight bits; vision tower and projector are not quantized (quant_args.py).

    Since version 3 nothing is quantized unless quant_method is set. `quantize_vision` is set in any case: changes that
    are proposed quantize too.
    """
    plain = {"quantize_vision": False}
    bits = config.integer("quant_bits", "quantization_bit", default=0, least=0)
    if bits and needs_method and not config.has("quant_method"):
        config.note("warning", "quant_bits", "has no effect without quant_method: nothing is quantized")
        return plain
    if not bits:
        return plain
    if config.lowercase("quant_method", default="bnb") != "bnb":
        raise config.unsupported("quant_method")
    if bits == 8:
        return plain | {"quantize": "int8"}
    if bits != 4:
        raise config.unsupported("quant_bits" if config.has("quant_bits") else "quantization_bit")
    # _init_bnb computes in fp32 over fp16 weights
    double_quant = config.boolean("bnb_4bit_use_double_quant", default=True)
    stored_dtype = job["dtype"]
    compute_dtype = read_dtype(config, "bnb_4bit_compute_dtype") or ("bf16" if stored_dtype == "bf16" else "fp32")
    if stored_dtype == "fp32" or compute_dtype != stored_dtype:
        raise config.unsupported(
            "bnb_4bit_compute_dtype",
            f"is taken as {compute_dtype}; computing so over {stored_dtype} is not modelled yet",
        )
    return plain | {"quantize": "nf4", "double_quant": double_quant} | quant_storage_field(config, job)


SAVED = LoraKeys("adapters", "lora_rank", "target_modules", "use_dora", "modules_to_save")
"""Its keys for adapters to go on with."""
RESUMED = "resume_from_checkpoint"


def lora_fields(config: ConfigReader, dtype: str) -> dict[str, Any]:
    """Adapters: new ones, or those of a folder with their own rank and layers (4.6, pipelines/train/tuner.py).

    Raises:
        ConfigError: for several folders, at which ms-swift stops, and for one that is not here.
        UnsupportedError: for adapters that are not modelled.
    """
    keys = SAVED if saved_adapters.names(config, SAVED.folder) else SAVED._replace(folder=RESUMED)
    folders = saved_adapters.names(config, keys.folder)
    if keys.folder == RESUMED and saved_adapters.find("".join(folders), config.folder) is None:
        if folders:  # of a run with the same settings
            config.note("warning", RESUMED, "rank and layers are the checkpoint's: taken as those of this command")
        return adapter_targets(config) | whole_module_fields(config, dtype)
    if len(folders) > 1:
        raise ConfigError(f"{config.place(SAVED.folder)}: {SAVED.folder}: ms-swift stops at more than one to train on")
    fields = saved_adapters.fields_of(config, keys)
    own = beside(f"{keys.named(config)}/{OWN_FILE}", config.folder)
    content = None if own is None else read_json(own, saved_adapters.MOST_BYTES)
    if isinstance(content, dict) and content.get("lora_dtype") is not None:
        raise UnsupportedError(f"{own}: lora_dtype {shown(content['lora_dtype'])} is not modelled yet")
    return fields | ({"saved_dtype": "fp32"} if "modules_to_save" in fields and dtype == "fp16" else {})


def adapter_dtype(config: ConfigReader, version: str) -> dict[str, Any]:
    """The adapters' own dtype, which PEFT made fp32 all the same before (tuners/peft.py: _cast_adapter_dtype_hook)."""
    dtype = read_dtype(config, "lora_dtype")
    if dtype is None or at_least(version, KEEPS_ADAPTER_DTYPE):
        return {} if dtype is None else {"lora_dtype": dtype}
    config.note("warning", "lora_dtype", f"has no effect before {KEEPS_ADAPTER_DTYPE}: PEFT makes adapters fp32")
    return {}


def check_head_dtype(config: ConfigReader, version: str, job: Mapping[str, Any]) -> None:
    """Check that ZeRO-3 gets adapters of the dtype of the head that trains beside them, of a reward or value model.

    DeepSpeed stops at others (0.19, runtime/zero/utils.py: defragment).

    Raises:
        ConfigError: with what to change in this version.
    """
    casts = engine_casts(job.get("strategy"), job.get("quantize", "none"))
    if job["task"] not in ("ppo", "reward") or job["method"] == "full" or job.get("strategy") != "zero3" or casts:
        return
    loaded = job["dtype"] if job.get("autocast", "none") == "none" else job["autocast"]  # DeepSpeed's
    if "saved_dtype" in job or job["lora_dtype"] == loaded:
        return
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(loaded, "float32")
    why = f"adapters are {job['lora_dtype']}, and the head that trains beside them {loaded}"
    if read_dtype(config, "torch_dtype") == "fp32" and loaded == "fp16":
        why += ", as torch_dtype float32 switches fp16 on, in which DeepSpeed loads the model"
    way = f"give {setting('set', f'lora_dtype={dtype}')}"
    if not at_least(version, KEEPS_ADAPTER_DTYPE):
        why += f" (before {KEEPS_ADAPTER_DTYPE} lora_dtype has no effect)"
        way += f" and {setting('framework_version', KEEPS_ADAPTER_DTYPE)}, or {setting('set', 'deepspeed=zero2')}"
    raise ConfigError(f"{config.source.where}: ms-swift {version} under ZeRO-3: DeepSpeed stops, as {why}; {way}")


def adapter_targets(config: ConfigReader) -> dict[str, Any]:
    """Rank, dropout and targets of adapters; of names of kinds of layers, all-linear alone."""
    job = adapter_fields(config, "lora_rank", dropout_keys=("lora_dropout", "lora_dropout_p"), default_dropout=0.05)
    names = config.strings("target_modules", "lora_target_modules")
    names = tuple(names[0].split()) if len(names) == 1 else names
    targets = [target for target in names if target.lower() not in ("all-linear", "all")]
    if any(target.startswith("all-") for target in targets) or 0 < len(targets) < len(names):
        raise config.unsupported("target_modules" if config.has("target_modules") else "lora_target_modules")
    if targets and targets != ["DEFAULT"]:
        job["lora_targets"] = tuple(targets)
    return job


def whole_module_fields(config: ConfigReader, dtype: str) -> dict[str, Any]:
    """DoRA and fully trained modules; trained fp16 weights become fp32 (pipelines/train/tuner.py)."""
    job = extra_adapter_fields(
        config, "use_dora", "modules_to_save" if config.has("modules_to_save") else "lora_modules_to_save"
    )
    if "modules_to_save" in job:
        job["modules_to_save"] = tuple(EMBEDDINGS.get(module.lower(), module) for module in job["modules_to_save"])
        if {"all-norm", "LN"} & {*job["modules_to_save"]}:
            raise config.unsupported("modules_to_save")
        job |= {"saved_dtype": "fp32"} if dtype == "fp16" else {}
    return job


def vision_fields(config: ConfigReader, method: str, freezes_tower: bool) -> dict[str, str]:
    """Training of vision tower and projector; 2.x did not freeze the tower."""
    trained = "train" if method == "full" else "lora"
    job = {}
    for part, name, default in (("vision", "freeze_vit", freezes_tower), ("projector", "freeze_aligner", True)):
        if not config.boolean(name, default=default):
            job[part] = trained
    return job


def image_caps(config: ConfigReader) -> dict[str, Any]:
    """Caps on images, from the environment or from the command itself."""
    job: dict[str, Any] = {}
    model = str(config.string("model", "model_id_or_path")).lower()
    tiles = "MAX_SLICE_NUMS" if MINICPM in model else "MAX_NUM"
    for field, variable in (("max_pixels", "MAX_PIXELS"), ("min_pixels", "MIN_PIXELS"), ("max_tiles", tiles)):
        value = config.variable(variable)
        if value is not None and value.isdigit():
            job[field] = int(value)
    if config.has("max_pixels"):
        job["max_pixels"] = config.integer("max_pixels", default=1)
    tokens = config.variable("IMAGE_MAX_TOKEN_NUM")
    if tokens is not None and tokens.isdigit():  # swift/model/models/qwen.py
        side = 32 if "qwen3" in model else 28
        job["max_pixels"] = int(tokens) * side * side
    if (config.variable("DOWNSAMPLE_MODE") or "16x") != "16x" and MINICPM in model:
        raise config.unsupported(
            "DOWNSAMPLE_MODE",
            "other than 16x is not read: check a copy without it, and with --model FOLDER, whose config.json has"
            " downsample_mode",
        )
    return job
