"""ms-swift: ``swift sft`` and ``swift pt``, its YAML and JSON, args.json (2.6, 3.x, 4.x; swift/arguments)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, settle, started, visible_cards
from vramplan.frameworks.readers import zero_config
from vramplan.frameworks.readers.trainer_arguments import (
    BATCH,
    NAMES,
    adapters,
    arguments,
    attention,
    beside,
    dtype_of,
    evaluation,
    experts,
    half_of,
    leaves,
    mapped,
    reentrant,
    storage,
)
from vramplan.frameworks.readers.video_sampling import from_environment
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader
from vramplan.frameworks.writers.config_text import FULL_NAMES, ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, batch_and_optimizer, reentrant_kwargs
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Fsdp, Job, Zero

PACKAGE, NEWEST = "ms-swift", "4.6.0"
KINDS = ("tuner_type", "train_type", "sft_type")
"""What versions 4, 3 and 2 call the method."""
RANKS = "global_world_size"
"""In the args.json that a run leaves behind, the processes that it had."""
EVERY = {"all-embedding": "embed_tokens", "embedding": "embed_tokens"}
"""What versions 3 and 2 call all embeddings in `modules_to_save`."""
SAMPLES_A_STEP = 16
"""gradient_accumulation_steps, where it is not set, makes this many samples of a step."""


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a ``swift sft`` command."""
    version, where = _version(keys, asked)
    method = keys.text(*KINDS, default="lora")
    if method not in ("lora", "full"):
        raise keys.refuse(next(name for name in KINDS if keys.has(name)))
    job = arguments(keys, 1, None, (BATCH, "batch_size"))
    job["method"] = method
    job |= experts(not at_least(version, "4.0"))  # 3.12's requirements: transformers below 4.58
    if keys.flag("use_liger", default=False):  # 2.x
        job["loss"] = "liger"
    job |= _dtypes(keys, method)
    job |= _quantized(keys, by_method=at_least(version, "3.0"), job=job)
    if method == "lora":
        job |= _adapters(keys) | _saved(keys, job["dtype"])
    job |= _parts(keys, method, frozen=at_least(version, "3.0"))
    if keys.flag("gradient_checkpointing", default=True):
        job["checkpointing"] = "full"
    job.setdefault("checkpointing", "none")  # FSDP's own is switched on in its configuration
    tower = keys.flag("vit_gradient_checkpointing", "vit_use_gc", default=job["checkpointing"] == "full")
    if tower != (job["checkpointing"] == "full"):
        raise keys.refuse("vit_gradient_checkpointing", "other than the language model's is not modelled yet")
    job |= _attention(keys)
    if keys.flag("packing", default=False) and keys.has("packing_length"):
        job["sequence_length"] = keys.count("packing_length", default=2048)
    elif keys.has("max_length"):
        job["sequence_length"] = keys.count("max_length", default=2048)
    elif not at_least(version, "3.0"):
        job["sequence_length"] = 2048
    else:
        keys.note("default", "max_length", "not set: samples may be as long as the model takes them")
    if keys.flag("packing", default=False) or keys.flag("padding_free", default=False):
        job["batches"] = "packed"
        if job.get("attention") != "flash":
            keys.note("warning", "packing", "needs --attn_impl flash_attn, ms-swift stops without it")
    job |= _images(keys)
    spread = _spread(keys, cards, job, at_least(version, "3.0"))
    ranks = 1 if spread else _ranks(keys, cards)
    job |= spread or {"num_gpus": ranks} | mapped(job)  # model/utils.py: get_default_device_map
    job |= leaves(job)
    job |= reentrant(keys, job, at_least(version, "3.0") and (ranks == 1 or "strategy" in job))  # trainers/mixin.py
    if "gradient_accumulation_steps" not in job:
        fills = at_least(version, "3.3") or not at_least(version, "3.0")
        steps = max(1, ceil(SAMPLES_A_STEP / job["micro_batch_size"] / ranks)) if fills else 1
        job["gradient_accumulation_steps"] = steps
        keys.note(
            "default",
            "gradient_accumulation_steps",
            f"not set: {steps}" + (f", which makes {SAMPLES_A_STEP} samples of a step" if fills else ""),
        )
    computes = "; bnb_4bit_compute_dtype float16" if job["dtype"] == "fp16" else ""
    names = NAMES | {
        "sequence_length": "max_length",
        "attention": {"sdpa": "attn_impl sdpa", "flash": "attn_impl flash_attn"},
        "dtype": {"bf16": "torch_dtype bfloat16", **dict.fromkeys(("fp16", "fp32"), "torch_dtype float16")},
        "autocast": {"fp16": "bf16 false; fp16 true"} if keys.has("bf16", "fp16") else {},
        "strategy": {"zero2": "deepspeed zero2", "zero3": "deepspeed zero3"},
        "offload": {"optimizer": f"deepspeed {job.get('strategy')}_offload"},
        "quantize": {"nf4": f"quant_method bnb; quant_bits 4{computes}", "int8": "quant_method bnb; quant_bits 8"},
        "method": {"lora": f"{'tuner_type' if at_least(version, '4.0') else 'train_type'} lora"},
    }
    reading = ParsedConfig(
        "ms-swift",
        f"{version} ({where})",
        keys.name("model", "model_id_or_path", "model_type") or "",
        job,
        names,
        keys.notes,
    )
    reading.brings = {f"zero{stage}": zero_config.preset(stage, "none") for stage in (2, 3)}
    held = keys.number("split_dataset_ratio", "dataset_test_ratio", default=0.0)
    splits = held > 0 or keys.has("val_dataset")
    reading.taken = _taken(keys, held)
    reading.eval_batch_size = evaluation(keys, 1, splits)
    reading.rows = "packed" if keys.flag("packing", default=False) else "samples"
    reading.drops_longer = keys.text("truncation_strategy", default="delete") == "delete"
    reading.caps_resize = keys.has("max_pixels")
    reading.sampling = from_environment(keys)
    if keys.has(RANKS):
        keys.asked |= keys.source.settings.keys()  # written by ms-swift itself: it knows them all
    return reading


def _taken(keys: ConfigReader, held: float) -> Callable[[int], int]:
    """``data.jsonl#500`` takes 500 samples, some twice where there are fewer (swift/dataset/dataset_meta.py)."""
    (*_, named) = keys.names("dataset") or ("",)
    number = named.rpartition("#")[2] if "#" in named and len(keys.names("dataset")) == 1 else ""

    def taken(samples: int) -> int:
        samples = int(number) if number.isdigit() else samples
        return max(1, samples - int(held * samples))

    return taken


def _attention(keys: ConfigReader) -> dict[str, str]:
    """attn_impl; in 2.x use_flash_attn, which false makes eager (2.6.1, swift/llm/utils/model.py)."""
    if keys.text("use_flash_attn", default="") in (*TRUE, *FALSE):
        return {"attention": "flash" if keys.flag("use_flash_attn", default=False) else "eager"}
    return attention(keys, "attn_impl", "use_flash_attn", "attn_implementation")


def _version(keys: ConfigReader, asked: str | None) -> tuple[str, str]:
    """The version whose words these are, where they tell, else the usual."""
    said = next((name for name in reversed(KINDS) if keys.has(name)), None)
    own = {"sft_type": "2.6.1", "train_type": "3.12.6", "tuner_type": NEWEST}
    if said is not None and asked is None:
        return own[said], f"from its {said}"
    return settle(PACKAGE, asked, NEWEST)


def _dtypes(keys: ConfigReader, method: str) -> dict[str, str]:
    """`torch_dtype` also chooses autocast; fp32 weights get fp16 (sft_args.py)."""
    stored = dtype_of(keys, "torch_dtype", "dtype")
    if stored is None:
        model = keys.source.model
        own = None if model is None else model.config_dtype
        said = "taken as bf16" if own is None else own
        keys.note("default", "torch_dtype", f"not set: the one that config.json names, {said}")
        stored = own or "bf16"
    half = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp16"}[stored]
    if keys.has("bf16", "fp16"):
        half = half_of(keys)
    if stored == "fp32" and half == "fp16":
        keys.note("warning", "torch_dtype", "float32 weights make ms-swift train under fp16 autocast, not bf16")
    if stored == "fp16" and method == "full":
        stored = "fp32"
    return {"dtype": stored, "autocast": half}


def _quantized(keys: ConfigReader, by_method: bool, job: dict[str, Any]) -> dict[str, Any]:
    """Bitsandbytes, four or eight bits; of a model that sees, tower and projector stay as they are (quant_args.py).

    Since version 3 nothing is quantized where no quant_method is named.
    """
    bits = keys.count("quant_bits", "quantization_bit", default=0, least=0)
    if bits and by_method and not keys.has("quant_method"):
        keys.note("warning", "quant_bits", "has no effect without quant_method: nothing is quantized")
        return {}
    if not bits:
        return {}
    if keys.text("quant_method", default="bnb") != "bnb":
        raise keys.refuse("quant_method")
    if bits == 8:
        return {"quantize": "int8", "quantize_vision": False}
    if bits != 4:
        raise keys.refuse("quant_bits" if keys.has("quant_bits") else "quantization_bit")
    double = keys.flag("bnb_4bit_use_double_quant", default=True)
    stored = job["dtype"]
    computed = dtype_of(keys, "bnb_4bit_compute_dtype") or ("bf16" if stored == "bf16" else "fp32")  # _init_bnb
    if stored == "fp32" or computed != stored:
        raise keys.refuse(
            "bnb_4bit_compute_dtype", f"is taken as {computed}; computing so over {stored} is not modelled yet"
        )
    return {"quantize": "nf4", "double_quant": double, "quantize_vision": False} | storage(keys, job)


def _adapters(keys: ConfigReader) -> dict[str, Any]:
    job = adapters(keys, "lora_rank", dropouts=("lora_dropout", "lora_dropout_p"), dropout=0.05)
    targets = [
        one for one in keys.names("target_modules", "lora_target_modules") if one.lower() not in ("all-linear", "all")
    ]
    if any(one.startswith("all-") for one in targets):
        raise keys.refuse("target_modules")
    if len(targets) == 1 and " " in targets[0]:
        targets = targets[0].split()
    if targets and targets != ["DEFAULT"]:
        job["lora_targets"] = tuple(targets)
    return job


def _saved(keys: ConfigReader, dtype: str) -> dict[str, Any]:
    """DoRA, and modules that train whole; what is fp16 and trains becomes fp32 (pipelines/train/tuner.py)."""
    job = beside(keys, "use_dora", "modules_to_save" if keys.has("modules_to_save") else "lora_modules_to_save")
    if "modules_to_save" in job:
        job["modules_to_save"] = tuple(EVERY.get(one.lower(), one) for one in job["modules_to_save"])
        if {"all-norm", "LN"} & {*job["modules_to_save"]}:
            raise keys.refuse("modules_to_save")
        job |= {"saved_dtype": "fp32"} if dtype == "fp16" else {}
    return job


def _parts(keys: ConfigReader, method: str, frozen: bool) -> dict[str, str]:
    """What happens to the tower and the projector; 2.x did not freeze the tower."""
    trained = "train" if method == "full" else "lora"
    job = {}
    for part, name, default in (("vision", "freeze_vit", frozen), ("projector", "freeze_aligner", True)):
        if not keys.flag(name, default=default):
            job[part] = trained
    return job


def _images(keys: ConfigReader) -> dict[str, Any]:
    """The caps of the environment, or of the command itself."""
    job: dict[str, Any] = {}
    for field, variable in (("max_pixels", "MAX_PIXELS"), ("min_pixels", "MIN_PIXELS"), ("max_tiles", "MAX_NUM")):
        said = keys.variable(variable)
        if said is not None and said.isdigit():
            job[field] = int(said)
    if keys.has("max_pixels"):
        job["max_pixels"] = keys.count("max_pixels", default=1)
    tokens = keys.variable("IMAGE_MAX_TOKEN_NUM")
    if tokens is not None and tokens.isdigit():  # swift/model/models/qwen.py
        side = 32 if "qwen3" in str(keys.name("model", "model_id_or_path")).lower() else 28
        job["max_pixels"] = int(tokens) * side * side
    return job


def _ranks(keys: ConfigReader, cards: int) -> int:
    """NPROC_PER_NODE x NNODES; without them one process."""
    several = started(keys, cards)
    if several is None and keys.has(RANKS):
        return max(1, keys.count(RANKS, default=1, least=-1))
    return several or 1


def _spread(keys: ConfigReader, cards: int, job: dict[str, Any], counts: bool) -> dict[str, Any]:
    """A process that sees several cards spreads the model over them: device_map auto (swift/utils/env.py: is_mp).

    `counts`: since version 3 also where NPROC_PER_NODE starts fewer processes than there are cards; before, one process
    alone does (2.6.1, llm/sft.py: get_default_device_map).

    Raises:
        ConfigError: where that cannot be, or is not meant.
        UnsupportedError: for several such processes.
    """
    if keys.has(RANKS) or keys.variable("SWIFT_SINGLE_DEVICE_MODE") == "1":
        return {}
    seen, processes = visible_cards(keys, cards), started(keys, cards)
    if seen < 2 * (processes or 1) or not (processes is None or counts):
        return {}
    if "NPROC_PER_NODE" in keys.source.unexported:
        place = keys.source.unexported["NPROC_PER_NODE"].place
        raise ConfigError(f"{place} is set but not exported: ms-swift does not see it; write export NPROC_PER_NODE=...")
    if processes is not None and processes > 1:
        raise keys.refuse(
            "NPROC_PER_NODE",
            f"is {processes} and {seen} cards are visible: {processes} pipelines over cards each are not modelled yet;"
            f" set NPROC_PER_NODE={seen}",
        )
    if "strategy" in job:
        raise ConfigError(
            f"{keys.source.where}: {seen} cards are visible to one process: ms-swift refuses DeepSpeed and FSDP beside"
            f" its device_map; set NPROC_PER_NODE={seen}"
        )
    return {"strategy": "device_map", "num_gpus": seen}


def write(model: str, job: Job) -> ConfigText:
    """``swift sft`` of ms-swift 4."""
    pairs = {
        "model": model,
        "tuner_type": "full" if job.method == "full" else "lora",
        "torch_dtype": FULL_NAMES["fp16" if job.autocast == "fp16" and job.method == "full" else job.dtype],
        **batch_and_optimizer(job),
        "max_length": job.sequence_length,
        **adapter(job, "lora_rank", "target_modules", "all-linear", "use_dora", "modules_to_save"),
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_impl": "flash_attn" if job.attention == "flash" else job.attention,
    }
    pairs |= {"freeze_vit": False} if job.vision != "frozen" else {}
    pairs |= {"freeze_aligner": False} if job.projector != "frozen" else {}
    if job.quantize == "nf4":
        pairs |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_use_double_quant": job.double_quant}
        pairs |= {} if job.dtype == "bf16" else {"bnb_4bit_compute_dtype": FULL_NAMES[job.dtype]}
    if job.quantize == "int8":
        pairs |= {"quant_method": "bnb", "quant_bits": 8} | reentrant_kwargs(job)
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    if job.batches == "packed":
        pairs["packing"] = True
    variables = {"NPROC_PER_NODE": str(job.num_gpus)}
    if job.strategy == "device_map":  # one process that sees all cards
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(job.num_gpus)))}
    pairs |= _sharding(job)
    if job.max_pixels is not None:
        variables["MAX_PIXELS"] = str(job.max_pixels)
    if job.max_tiles is not None:
        variables["MAX_NUM"] = str(job.max_tiles)
    return ConfigText(pairs, variables | allocator_variables(job), "swift sft")


def _sharding(job: Job) -> Pairs:
    """A configuration that it ships where that is the job's, else the job's own as JSON."""
    if job.strategy.startswith("zero"):
        for ending, offload in (("", "none"), ("_offload", "optimizer"), ("_offload", "all")):
            shipped = zero_config.preset(int(job.strategy[-1]), offload)
            wanted = Zero(**shipped["zero"], leaf_mixtures=job.zero.leaf_mixtures)
            if (wanted, offload) == (job.zero, job.offload) and (offload != "optimizer" or job.strategy != "zero3"):
                return {"deepspeed": f"{job.strategy}{ending}"}
    pairs = sharding(job)
    if job.strategy != "fsdp":
        return pairs
    pairs["fsdp_config"]["activation_checkpointing"] = job.checkpointing == "full"
    is_shipped = (job.fsdp, job.offload, job.checkpointing) == (Fsdp(), "none", "full")
    return {"gradient_checkpointing": False, "fsdp": "fsdp2" if is_shipped else pairs}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("swift", "sft"), ("swift", "pt"), ("swift/cli/sft.py",), ("swift/cli/pt.py",)),
    unread_commands={("swift", "rlhf"): "preference and reinforcement training"},
    marks=frozenset({"train_type", "tuner_type", "sft_type", "torch_dtype", "vit_gradient_checkpointing"}),
    inherits=("transformers",),
    variables=frozenset(
        {
            "MAX_PIXELS", "MIN_PIXELS", "IMAGE_MAX_TOKEN_NUM", "IMAGE_MIN_TOKEN_NUM", "VIDEO_MAX_PIXELS",
            "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_PIXELS", "VIDEO_MIN_TOKEN_NUM", "VIDEO_SEGMENTS", "VIDEO_MAX_NUM",
            "FPS_MAX_FRAMES", "MAX_NUM", "INPUT_SIZE", "MAX_SLICE_NUMS", "SWIFT_SINGLE_DEVICE_MODE",
        }
    ),
    expands_all_linear=True,
    writers=(Writer("swift", write, (*ENGINES, "device_map"), uses_ported_model=False),),
)  # fmt: skip
