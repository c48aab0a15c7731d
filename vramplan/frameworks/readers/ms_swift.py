"""ms-swift: ``swift sft`` and ``swift pt``, its YAML and JSON, args.json (2.6, 3.x, 4.x; swift/arguments)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import ENGINES, Framework, Program, Writer
from vramplan.frameworks.liger import ALL_KERNELS, liger_pairs
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
    at_least,
    num_started_processes,
    resolve_version,
    visible_gpus,
)
from vramplan.frameworks.readers import (
    ms_swift_grpo,
    ms_swift_ppo,
    ms_swift_rows,
    ms_swift_tasks,
    ms_swift_types,
    zero_config,
)
from vramplan.frameworks.readers.ms_swift_model import (
    MINICPM,
    adapter_dtype,
    attention_fields,
    check_head_dtype,
    dtype_fields,
    image_caps,
    lora_fields,
    quantized_fields,
    vision_fields,
)
from vramplan.frameworks.readers.ms_swift_rollout import ROLLOUT_NAMES
from vramplan.frameworks.readers.trainer_arguments import (
    BATCH_KEY,
    NAMES,
    device_map_field,
    eval_batch_size,
    experts_field,
    is_launched,
    leaf_module_fields,
    num_processes,
    reentrant_fields,
    trainer_fields,
)
from vramplan.frameworks.readers.video_sampling import from_environment
from vramplan.frameworks.settings import TRUE, ConfigReader, ConfigSource
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import FULL_NAMES, ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, batch_and_optimizer, reentrant_kwargs
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job
from vramplan.inputs.sharding import Fsdp, Zero
from vramplan.inputs.task_rules import PREFERENCE

PACKAGE, NEWEST = "ms-swift", "4.6.0"
METHOD_KEYS = ("tuner_type", "train_type", "sft_type")
"""Keys of the method in versions 4, 3 and 2."""
WORLD_SIZE_KEY = "global_world_size"
"""The number of processes in the args.json that a run writes."""
TITLES = {
    "sequence_classification": "sequence classification", "reward": "reward model", "embedding": "embedding",
    "reranker": "reranker", "generative_reranker": "generative reranker",
}  # fmt: skip
"""What a task is called, where that is not its name in capitals."""
RLHF = (*PREFERENCE, "grpo", "ppo")
"""Tasks of ``swift rlhf``."""
TASKS = (*RLHF, *ms_swift_types.TASKS.values())
"""Tasks that it runs."""
SAMPLES_PER_STEP = 16
"""The default of gradient_accumulation_steps makes a step of this many samples."""

FSDP_PRESETS: dict[str, dict[str, Any]] = {
    "fsdp2": {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": True},
    }
}
"""Values of `fsdp` that name configurations that it ships (swift/config/fsdp2.json)."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a ``swift sft`` command."""
    version, where = _version(config, framework_version)
    is_grpo = ms_swift_grpo.is_grpo(config)
    if where == "from its train_type":
        ms_swift_tasks.note_older_versions(config, version)
    method = config.lowercase(*METHOD_KEYS, default="lora")
    if method not in ("lora", "full"):
        raise config.unsupported(next(name for name in METHOD_KEYS if config.has(name)))
    job = trainer_fields(config, 1, None, (BATCH_KEY, "batch_size"), fsdp_presets=FSDP_PRESETS)
    job["method"] = method
    job |= experts_field(not at_least(version, "4.0"))  # 3.12's requirements: transformers below 4.58
    if config.boolean("use_liger", default=False):  # 2.x
        job |= ALL_KERNELS
    job |= dtype_fields(config, method)
    job |= quantized_fields(config, needs_method=at_least(version, "3.0"), job=job)
    if method == "lora":
        job |= lora_fields(config, job["dtype"]) | adapter_dtype(config, version)
    else:
        config.require_off("adapters", why="with full fine-tuning is not modelled; merge them into the model")
    if "vision" not in job:  # adapters that are loaded say it themselves
        job |= vision_fields(config, method, freezes_tower=at_least(version, "3.0"))
    if config.boolean("gradient_checkpointing", default=True):
        job["checkpointing"] = "full"
    job.setdefault("checkpointing", "none")  # FSDP's own checkpointing is set in its configuration
    tower_mode = config.boolean("vit_gradient_checkpointing", "vit_use_gc", default=job["checkpointing"] == "full")
    if tower_mode != (job["checkpointing"] == "full"):
        raise config.unsupported("vit_gradient_checkpointing", "other than the language model's is not modelled yet")
    job |= attention_fields(config)
    if ms_swift_rows.makes_packs(config) and config.has("packing_length"):
        job["sequence_length"] = config.integer("packing_length", default=2048)
    elif not at_least(version, "3.0") and config.string("max_length") == "-1":  # 2.6.1: llm/utils/argument.py
        config.note("default", "max_length", "-1: samples may be as long as the model takes them")
    elif config.has("max_length"):
        job["sequence_length"] = config.integer("max_length", default=2048)
    elif not at_least(version, "3.0"):
        job["sequence_length"] = 2048
    else:
        config.note("default", "max_length", "not set: samples may be as long as the model takes them")
    if config.boolean("packing", default=False) or config.boolean("padding_free", default=False):
        job["batches"] = "packed"
        if job.get("attention") != "flash":
            name = "packing" if config.boolean("packing", default=False) else "padding_free"
            raise ConfigError(f"{config.place(name)}: ms-swift stops at {name} without --attn_impl flash_attn")
    job |= image_caps(config)
    device_map = _device_map(config, num_gpus, job, at_least(version, "3.0"))
    processes = 1 if device_map else _num_processes(config, num_gpus)
    job |= device_map or {"num_gpus": processes} | device_map_field(job)  # model/utils.py: get_default_device_map
    job |= leaf_module_fields(job)
    job |= reentrant_fields(
        config, job, at_least(version, "3.0") and (processes == 1 or "strategy" in job)
    )  # trainers/mixin.py
    if "gradient_accumulation_steps" not in job:
        fills_step = not is_grpo and (at_least(version, "3.3") or not at_least(version, "3.0"))
        steps = max(1, ceil(SAMPLES_PER_STEP / job["micro_batch_size"] / processes)) if fills_step else 1
        job["gradient_accumulation_steps"] = steps
        config.note(
            "default",
            "gradient_accumulation_steps",
            f"not set: {steps}" + (f", which makes {SAMPLES_PER_STEP} samples of a step" if fills_step else ""),
        )
    compute_pair = "; bnb_4bit_compute_dtype float16" if job["dtype"] == "fp16" else ""
    names = NAMES | {
        "sequence_length": "max_length",
        "attention": {"sdpa": "attn_impl sdpa", "flash": "attn_impl flash_attn"},
        "dtype": {"bf16": "torch_dtype bfloat16", **dict.fromkeys(("fp16", "fp32"), "torch_dtype float16")},
        "autocast": {"fp16": "bf16 false; fp16 true"} if config.has("bf16", "fp16") else {},
        "strategy": {"zero2": "deepspeed zero2", "zero3": "deepspeed zero3"},
        "offload": {
            "all" if job.get("strategy") == "zero3" else "optimizer": f"deepspeed {job.get('strategy')}_offload",
        },
        "quantize": {
            "nf4": f"quant_method bnb; quant_bits 4{compute_pair}",
            "int8": "quant_method bnb; quant_bits 8",
        },
        "method": {"lora": f"{'tuner_type' if at_least(version, '4.0') else 'train_type'} lora"},
    }
    parsed = ParsedConfig(
        "ms-swift",
        f"{version} ({where})",
        config.string("model", "model_id_or_path", "model_type") or "",
        job,
        names,
        config.notes,
    )
    if method == "lora" and (is_grpo or ms_swift_tasks.is_rlhf(config)):
        job.setdefault("lora_dtype", "fp32")  # PEFT's own: trainers of ms-swift skip TRL's __init__, which casts them
    if is_grpo:
        config.read_keys |= {"loss_type", "label_smoothing"}
    elif ms_swift_tasks.is_rlhf(config):
        parsed.job |= ms_swift_tasks.task_fields(config, version, parsed.model, job)
        check_head_dtype(config, version, parsed.job)
        if parsed.job.get("generated_by") == "student":  # texts of max_length and a completion
            parsed.names = {**{name: key for name, key in names.items() if name != "sequence_length"}, **ROLLOUT_NAMES}
    elif ms_swift_types.is_typed(config):
        ms_swift_rows.refuse_shared(config)
        parsed.job |= ms_swift_types.task_fields(config, version, parsed.model, job)
    else:
        parsed.job |= ms_swift_rows.shared_fields(config, version, job["num_gpus"], computes_cross_entropy=True)
        if "swift" in parsed.job and parsed.job.get("loss") == "liger":
            parsed.job["loss"] = "standard"  # the trainer takes the labels away (trainers/seq2seq_trainer.py)
        for name in ("loss_type", "label_smoothing"):
            config.require_off(name)
    parsed.strategy_settings = {f"zero{stage}": zero_config.preset(stage, "none") for stage in (2, 3)}
    held_back = config.number("split_dataset_ratio", "dataset_test_ratio", default=0.0)
    has_evaluation = held_back > 0 or config.has("val_dataset")
    parsed.num_train_samples = _num_train_samples(config, held_back)
    parsed.eval_batch_size = eval_batch_size(config, 1, has_evaluation)
    parsed.rows = "packed" if ms_swift_rows.makes_packs(config) else "samples"
    parsed.task = "pretraining" if config.source.command[-1:] in (("pt",), ("swift/cli/pt.py",)) else "SFT"
    if "task" in job:
        named = config.lowercase("rlhf_type", default="")  # SimPO runs CPO's trainer
        parsed.task = "SimPO" if named == "simpo" else TITLES.get(job["task"], job["task"].upper())
    parsed.drops_longer = config.lowercase("truncation_strategy", default="delete") == "delete"
    parsed.resizes_images = config.has("max_pixels")
    parsed.video_sampling = from_environment(config)
    if is_grpo:
        ms_swift_grpo.train_for(parsed, config, version)
    elif parsed.job.get("task") == "ppo":
        ms_swift_ppo.finish(parsed, config)
    if config.has(WORLD_SIZE_KEY):
        config.read_keys |= config.source.settings.keys()  # written by ms-swift itself: it takes all of them
    return parsed


def _num_train_samples(config: ConfigReader, held_back: float) -> Callable[[int], int]:
    """``data.jsonl#500`` takes 500 samples, some twice if there are fewer (swift/dataset/dataset_meta.py)."""
    (*_, dataset) = config.strings("dataset") or ("",)
    number = dataset.rpartition("#")[2] if "#" in dataset and len(config.strings("dataset")) == 1 else ""

    def num_train_samples(samples: int) -> int:
        samples = int(number) if number.isdigit() else samples
        return max(1, samples - int(held_back * samples))

    return num_train_samples


def _version(config: ConfigReader, framework_version: str | None) -> tuple[str, str]:
    """The version that the method's key belongs to, else the installed or newest one."""
    method_key = next((name for name in reversed(METHOD_KEYS) if config.has(name)), None)
    versions = {"sft_type": "2.6.1", "train_type": "3.12.6", "tuner_type": NEWEST}
    if method_key is not None and framework_version is None:
        return versions[method_key], f"from its {method_key}"
    return resolve_version(PACKAGE, framework_version, NEWEST)


def _num_processes(config: ConfigReader, num_gpus: int) -> int:
    """NPROC_PER_NODE x NNODES, by which ``swift`` calls torchrun; a launcher's own number; one process by default."""
    if is_launched(config):
        return num_processes(config, num_gpus)
    started = num_started_processes(config, num_gpus)
    if started is None and config.has(WORLD_SIZE_KEY):
        return max(1, config.integer(WORLD_SIZE_KEY, default=1, least=-1))
    return started or 1


def _device_map(config: ConfigReader, num_gpus: int, job: dict[str, Any], per_process: bool) -> dict[str, Any]:
    """device_map auto, which a process that sees several GPUs places the model with (swift/utils/env.py: is_mp).

    `per_process`: since version 3 also if NPROC_PER_NODE starts fewer processes than there are GPUs; before, only a
    single process did (2.6.1, llm/sft.py: get_default_device_map).

    Raises:
        ConfigError: if an engine is set beside it, or NPROC_PER_NODE is set but not exported.
        UnsupportedError: for several such processes.
    """
    if config.has(WORLD_SIZE_KEY) or config.variable("SWIFT_SINGLE_DEVICE_MODE") == "1":
        return {}
    processes = num_processes(config, num_gpus) if is_launched(config) else num_started_processes(config, num_gpus)
    visible = visible_gpus(config, num_gpus)
    if visible < 2 * (processes or 1) or not (processes is None or per_process):
        return {}
    if "NPROC_PER_NODE" in config.source.unexported:
        place = config.source.unexported["NPROC_PER_NODE"].place
        raise ConfigError(f"{place} is set but not exported: ms-swift does not see it; write export NPROC_PER_NODE=...")
    if processes is not None and processes > 1:
        raise config.unsupported(
            "NPROC_PER_NODE" if not is_launched(config) else "nproc_per_node",
            f"is {processes} and {visible} GPUs are visible: {processes} pipelines over GPUs each are not modelled"
            f" yet; set NPROC_PER_NODE={visible}",
        )
    if "strategy" in job:
        raise ConfigError(
            f"{config.source.where}: {visible} GPUs are visible to one process: ms-swift refuses DeepSpeed and FSDP"
            f" beside its device_map; set NPROC_PER_NODE={visible}"
        )
    return {"strategy": "device_map", "num_gpus": visible}


def write(model: str, job: Job) -> ConfigText:
    """``swift sft`` or ``swift rlhf`` of ms-swift 4."""
    pairs = {
        **(ms_swift_tasks.type_pairs(job) if job.task in RLHF else ms_swift_types.type_pairs(job)),
        "model": model,
        "tuner_type": "full" if job.method == "full" else "lora",
        "torch_dtype": FULL_NAMES["fp16" if job.autocast == "fp16" and job.method == "full" else job.dtype],
        **batch_and_optimizer(job),
        "max_length": job.sequence_length,
        **adapter(
            ms_swift_types.without_head(job), "lora_rank", "target_modules", "all-linear", "use_dora", "modules_to_save"
        ),
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
    pairs |= liger_pairs(job)
    if job.batches == "packed":
        pairs["packing" if job.task is None else "padding_free"] = True
    variables = nodes.variables(job)
    if job.strategy == "device_map":  # one process that sees all GPUs
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(job.num_gpus)))}
    pairs |= _sharding(job) | ms_swift_grpo.grpo_pairs(job) | ms_swift_ppo.ppo_pairs(job)
    pairs |= ms_swift_rows.shared_pairs(job)
    variables |= ms_swift_rows.shared_variables(job)
    if job.max_pixels is not None:
        variables["MAX_PIXELS"] = str(job.max_pixels)
    if job.max_tiles is not None:
        variables["MAX_SLICE_NUMS" if MINICPM in model.lower() else "MAX_NUM"] = str(job.max_tiles)
    return ConfigText(
        pairs,
        variables | allocator_variables(job),
        f"swift {'rlhf' if job.task in RLHF else 'sft'}",
        notes=(*nodes.notes(job), *(("reward_funcs are yours to give",) if job.task == "grpo" else ())),
    )


def _sharding(job: Job) -> Pairs:
    """The shipped configuration that equals the job's, else the job's own as JSON."""
    if job.strategy.startswith("zero"):
        for ending, offload in (("", "none"), ("_offload", "optimizer"), ("_offload", "all")):
            preset = zero_config.preset(int(job.strategy[-1]), offload)
            sizes = Zero(**preset["zero"], leaf_mixtures=job.zero.leaf_mixtures)
            if (sizes, offload) == (job.zero, job.offload) and (offload != "optimizer" or job.strategy != "zero3"):
                return {"deepspeed": f"{job.strategy}{ending}"}
    pairs = sharding(job)
    if job.strategy != "fsdp":
        return pairs
    pairs["fsdp_config"]["activation_checkpointing"] = job.checkpointing == "full"
    is_preset = (job.fsdp, job.offload, job.checkpointing) == (Fsdp(), "none", "full")
    return {"gradient_checkpointing": False, "fsdp": "fsdp2" if is_preset else pairs}


def _stops_at_unknown(source: ConfigSource) -> bool:
    """Whether a key that is not known stops it (4.6, pipelines/base.py: remaining_argv)."""
    ignores = source.settings.get("ignore_args_error")
    return ignores is None or str(ignores.value).lower() not in TRUE


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(
        ("swift", "sft"), ("swift", "pt"), ("swift", "rlhf"), ("swift/cli/sft.py",), ("swift/cli/pt.py",),
        ("swift/cli/rlhf.py",), ("llm_sft.py",),
    ),
    programs=(
        Program("llm_dpo.py", unread="preference training"),
        Program("rlhf.py", frozenset({"rlhf_type"})),
    ),
    task_keys=("rlhf_type",),
    stops_at_unknown=_stops_at_unknown,
    marks=frozenset(
        {"train_type", "tuner_type", "sft_type", "vit_gradient_checkpointing", "quant_bits", "split_dataset_ratio"}
    ),
    inherits=("transformers",),
    variables=frozenset(
        {
            "MAX_PIXELS", "MIN_PIXELS", "IMAGE_MAX_TOKEN_NUM", "IMAGE_MIN_TOKEN_NUM", "VIDEO_MAX_PIXELS",
            "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_PIXELS", "VIDEO_MIN_TOKEN_NUM", "VIDEO_SEGMENTS", "VIDEO_MAX_NUM",
            "FPS_MAX_FRAMES", "MAX_NUM", "INPUT_SIZE", "MAX_SLICE_NUMS", "DOWNSAMPLE_MODE",
            "SWIFT_SINGLE_DEVICE_MODE", "CELOSS_PARALLEL_SIZE",
        }
    ),
    expands_all_linear=True,
    writers=(Writer("swift", write, (*ENGINES, "device_map"), uses_ported_model=False, tasks=TASKS),),
)  # fmt: skip
