"""TRL: its commands, their YAML and scripts (0.12 to 1.16; trl/scripts, trainer/sft_config.py)."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.framework import ENGINES, Framework, Program, Writer
from vramplan.frameworks.liger import ALL_KERNELS, liger_pairs
from vramplan.frameworks.nearest import BY_TILES, DISTILLATION_NEAREST, ONLINE_NEAREST, PPO_NEAREST
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, resolve_version, version_numbers
from vramplan.frameworks.readers import (
    saved_adapters,
    trl_adapters,
    trl_packing,
    trl_ppo,
    trl_tasks,
    trl_trainers,
    zero_config,
)
from vramplan.frameworks.readers.trainer_arguments import (
    ALL_LINEAR,
    NAMES,
    PYTHON_NAMES,
    adapter_fields,
    attention_field,
    checkpoint_dtype,
    default_optimizer,
    device_map_field,
    eval_batch_size,
    experts_field,
    extra_adapter_fields,
    gpus_and_device_map,
    lora_targets,
    num_launched_processes,
    quantization_fields,
    read_dtype,
    read_image_caps,
    reentrant_fields,
    trainer_fields,
    vision_fields,
)
from vramplan.frameworks.settings import UNSET, ConfigReader
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import ConfigText, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, reentrant_kwargs, trainer_arguments
from vramplan.frameworks.writers.trl_tasks import TASKS, task_notes, task_pairs
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "trl", "1.16.0"
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""The key of transformers 5.23, and its former name, which counts where the new one is not set (training_args.py)."""
FUSED_SINCE = "0.20"
"""The first version released beside transformers 4.54, whose default optimizer is fused."""
LAST_VERSIONS = {"max_seq_length": "0.19.1", "use_liger": "0.17.0"}
"""Keys that were removed since, and the last version with each, later ones first (trainer/sft_config.py)."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a ``trl`` command, of its configuration, or of a script with one of its trainers."""
    task = trl_trainers.task_of(config)
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    if framework_version is None:
        version, where = _version_of(config, task, version) or (version, where)
    _check_tokenizer(config, task, version)
    optimizer = default_optimizer("5.0" if at_least(version, FUSED_SINCE) else "4.53")
    job = trainer_fields(config, optimizer=optimizer) | _strategy(config)
    method = "lora" if config.boolean("use_peft", default=False) else "full"
    job["method"] = method
    goes_on = bool(saved_adapters.names(config, saved_adapters.KEY))
    trl_adapters.check_merged(config, version)
    job |= vision_fields(method)
    job |= experts_field(not at_least(version, "0.27"))
    if goes_on:
        job |= saved_adapters.fields_of(config, saved_adapters.IN_SCRIPTS)
    elif method == "lora":
        job |= adapter_fields(config, "lora_r", default_rank=16, default_dropout=0.05)
        if config.has("lora_target_modules"):
            job["lora_targets"] = lora_targets(config, "lora_target_modules")
        job |= extra_adapter_fields(config, "use_dora", "lora_modules_to_save")
    elif config.has("lora_r"):
        config.note("warning", "lora_r", "has no effect without use_peft: every weight trains")
    if _is_bare(config, version):
        _refuse_loading(config)
    job |= _dtypes(config, version, engine_casts=str(job.get("strategy")).startswith("zero"), task=task)
    has_adapters = config.boolean("peft_model", default=False)
    job |= _quantized(config, version, job, trl_tasks.kbit_treatment(task, version, has_adapters))
    if task is not None and "quantize" in job:
        job.setdefault("lora_dtype", "fp32")  # PEFT's own, where TRL does not cast them
    if (
        at_least(version, "1.12")
        and job["method"] != "full"
        and job.get("strategy") == "zero3"
        and "quantize" not in job
    ):
        # autocast_adapter_dtype=False, not yet in 1.5 (trainer/sft_trainer.py)
        job["lora_dtype"] = job["dtype"] if job["autocast"] == "none" else job["autocast"]
    job["checkpointing"] = "full" if config.boolean(*CHECKPOINTING, default=at_least(version, "0.22")) else "none"
    job |= reentrant_fields(config, job, not at_least(version, "0.27"))
    forces = task not in ("orpo", "cpo") and at_least(version, "1.12" if task else "0.28")
    if job["method"] != "full" and job.get("strategy") == "zero3" and forces:
        job["reentrant"] = job["checkpointing"] == "full"  # TRL forces it (trainer/sft_trainer.py, dpo_trainer.py)
    job |= attention_field(config, "attn_implementation")
    if task is None:
        job |= _loss(config, version, job) | _length(config) | trl_packing.batch_fields(config, job, version)
    job |= gpus_and_device_map(config, num_gpus, num_launched_processes)
    if (
        at_least(version, "1.5")
        and job["num_gpus"] == 1
        and config.source.spelling != "python"
        and task != "ppo"
        and not _is_bare(config, version)
    ):
        job |= device_map_field(job)  # trainer/utils.py: create_model_from_path, in one process
    names = NAMES | {"sequence_length": "max_seq_length" if config.has("max_seq_length") else "max_length"}
    if config.source.spelling == "python":
        names |= PYTHON_NAMES | {"method": {"lora": f"peft_config {ALL_LINEAR}"}}
    else:
        names |= {
            "method": {"lora": "use_peft true"},
            "quantize": {"nf4": "load_in_4bit true", "int8": "load_in_8bit true"},
            "strategy": {
                fields["strategy"]: f"accelerate_config {name}" for name, fields in ACCELERATE_CONFIGS.items() if fields
            },
        }
    model = config.string("model_name_or_path") or saved_adapters.base_of(config) or ""
    parsed = ParsedConfig("trl", f"{version} ({where})", model, job, names, config.notes)
    parsed.uses_peft_targets = method == "lora" and not goes_on and not config.has("lora_target_modules")
    config.read_keys.add("uses_peft_targets")
    read_image_caps(config, parsed)
    parsed.strategy_settings = {fields["strategy"]: fields for fields in ACCELERATE_CONFIGS.values() if fields}
    parsed.eval_batch_size = eval_batch_size(config, 8, config.has("eval_strategy"))
    if task is None:
        parsed.rows = "packed" if config.boolean("packing", default=False) else "samples"
    else:
        trl_tasks.train_for(parsed, config, task, version)
    return parsed


def _version_of(config: ConfigReader, task: str | None, newest: str) -> tuple[str, str] | None:
    """(the last version that takes the configuration's keys, the reason); None if the newest does."""
    if task == "ppo" and not at_least(trl_ppo.LAST, newest):
        return trl_ppo.LAST, "the last with PPOTrainer"
    last_versions = trl_tasks.LAST_VERSIONS[task] if task else LAST_VERSIONS
    if task in trl_trainers.LAST_WITH_TOKENIZER:
        last_versions = {trl_trainers.TOKENIZER_KEY: trl_trainers.LAST_WITH_TOKENIZER[task], **last_versions}
    settings = config.source.settings  # not has(): a value that only a run tells is set too
    keys = (key for key in last_versions if key in settings and settings[key].value not in UNSET)
    known = ((last_versions[key], f"from its {key}") for key in keys)
    return min(
        (found for found in known if not task or not at_least(found[0], newest)),
        key=lambda found: version_numbers(found[0]),
        default=None,
    )


def _check_tokenizer(config: ConfigReader, task: str | None, version: str) -> None:
    """Refuse a trainer's `tokenizer` in versions that stop at it.

    Raises:
        ConfigError: naming the argument that took its place.
    """
    key, last = trl_trainers.TOKENIZER_KEY, trl_trainers.LAST_WITH_TOKENIZER.get(task)
    config.read_keys.add(key)
    if not config.has(key) or task == "ppo":
        return
    if last is None or (version != last and at_least(version, last)):
        raise trl_trainers.stops_at_tokenizer(config, f"TRL {version}")


def _is_bare(config: ConfigReader, version: str) -> bool:
    """Whether one of TRL's scripts runs that pass nothing but the model's name to from_pretrained."""
    by_name = BARE_SCRIPTS if at_least(version, "0.26") else (*BARE_SCRIPTS, *trl_ppo.SCRIPTS)
    is_theirs = config.framework == PACKAGE and config.source.spelling != "python"
    return is_theirs and config.source.program.endswith(by_name)


def _refuse_loading(config: ConfigReader) -> None:
    """Flags that have no effect: the script passes nothing but the name to from_pretrained (examples/scripts)."""
    for name in ("dtype", "torch_dtype", "load_in_4bit", "load_in_8bit", "attn_implementation"):
        if config.has(name):
            raise config.unsupported(name, f"has no effect: {config.source.program} loads the model by its name alone")


def _length(config: ConfigReader) -> dict[str, int]:
    """Tokens of a sample of SFT; open if samples are never cut."""
    if config.source.program.endswith(UNCUT):
        if config.has("max_length", "max_seq_length"):
            config.note("warning", "max_length", f"has no effect: {UNCUT} sets it to None, samples are never cut")
        return {}
    if config.is_null("max_length"):
        return {}
    if not config.has("max_length", "max_seq_length"):
        config.note("default", "max_length", "not set: 1024")
    return {"sequence_length": config.integer("max_seq_length", "max_length", default=1024)}


ACCELERATE_CONFIGS: dict[str, dict[str, Any]] = {
    "single_gpu": {},
    "multi_gpu": {},
    **{f"zero{stage}": zero_config.stage_defaults(stage) for stage in (1, 2, 3)},
    "fsdp2": {"strategy": "fsdp", "fsdp": {"version": 2, "reshard_after_forward": True}},
}
"""TRL's own accelerate configurations, by name (accelerate_configs/*.yaml)."""


def _strategy(config: ConfigReader) -> dict[str, Any]:
    name = config.lowercase("accelerate_config", default="single_gpu")
    if name not in ACCELERATE_CONFIGS:
        raise config.unsupported("accelerate_config")
    return ACCELERATE_CONFIGS[name]


def _loads_as_published(config: ConfigReader, version: str, task: str | None) -> bool:
    """Whether a model that is named alone is loaded in the checkpoint's dtype.

    So ORPO and CPO do since 0.26 (orpo_trainer.py), whose scripts load it by transformers 5, and all in 0.26
    (trainer/utils.py: create_model_from_path).
    """
    in_python = config.source.spelling == "python" or _is_bare(config, version)
    return in_python and at_least(version, "0.26") and (task in ("orpo", "cpo") or not at_least(version, "0.27"))


def _dtypes(config: ConfigReader, version: str, engine_casts: bool, task: str | None = None) -> dict[str, str]:
    """fp32 weights by default, by transformers 4 before 0.27; bf16 autocast by default since 0.19.

    `engine_casts`: DeepSpeed brings the weights to half precision, whatever they are loaded in.
    """
    weights_dtype = read_dtype(config, "dtype", "torch_dtype")
    by_script = config.boolean(trl_trainers.WITHOUT_DTYPE, default=False)
    if (
        by_script
        and not config.has("load_in_4bit", "load_in_8bit")
        and trl_trainers.dtype_of_scripts(version) == "fp32"
    ):
        weights_dtype = None  # transformers 4.57, modeling_utils.py: from_pretrained keeps torch's default dtype
    elif weights_dtype is None and config.has("dtype", "torch_dtype"):
        weights_dtype = checkpoint_dtype(config, "dtype", f"TRL {version} loads")
    elif weights_dtype is None and not at_least(version, "0.27") and config.boolean("load_in_8bit", default=False):
        weights_dtype = "fp16"  # transformers 4.57, quantizer_bnb_8bit.py: update_dtype
    elif weights_dtype is None and not by_script and _loads_as_published(config, version, task):
        weights_dtype = checkpoint_dtype(config, "dtype", f"TRL {version} loads")
    if weights_dtype is None:
        weights_dtype = "fp32"
        if not engine_casts:
            loads = "from_pretrained of transformers 4" if by_script else f"TRL {version}"
            config.note(
                "warning",
                "dtype",
                f"is not set: {loads} loads fp32 weights, frozen ones too; dtype: bfloat16 halves them",
            )
    fp16 = config.boolean("fp16", default=False)
    bf16 = config.boolean("bf16", default=at_least(version, "0.19") and not fp16)
    return {"dtype": weights_dtype, "autocast": "bf16" if bf16 else "fp16" if fp16 else "none"}


def _quantized(
    config: ConfigReader, version: str, job: dict[str, Any], treatment: trl_tasks.Treatment
) -> dict[str, Any]:
    """Four or eight bits; double quantization only if it is set. Trained weights are bf16 (trainer/sft_trainer.py).

    If the model is prepared, as by SFT before 0.27, PEFT's preparation casts the rest to fp32, of which bf16 runs in
    four bits keep the norms alone (models/utils.py: prepare_peft_model, peft_module_casting_to_bf16); not if FSDP loads
    the base model to the host.
    """
    four, eight = (config.boolean(name, default=False) for name in ("load_in_4bit", "load_in_8bit"))
    if not four and not eight:
        return {}
    if four and eight:
        raise config.invalid(("load_in_8bit",), "false beside load_in_4bit: TRL takes one of both")
    on_host = four and job.get("strategy") == "fsdp" and not at_least(version, "0.27")
    if on_host:
        job["fsdp"] = job["fsdp"] | {"loads_whole_model": False}
    is_prepared = treatment == "prepared" and not on_host
    if four and is_prepared and read_dtype(config, "dtype", "torch_dtype") is None:
        raise config.unsupported("load_in_4bit", "computing in fp32 or fp16 is not modelled yet; give dtype: bfloat16")
    fields = quantization_fields(config, job["dtype"], job)
    if treatment == "as_loaded":
        return fields
    if is_prepared:
        field = "fp32_norms" if four and job["autocast"] == "bf16" else "prepare_for_kbit_training"
        return fields | {field: True}
    if job["method"] == "dora":
        raise config.unsupported("use_dora", "on a quantized base, whose magnitudes stay fp32, is not modelled yet")
    return fields | {"lora_dtype": "bf16"} | ({"saved_dtype": "bf16"} if "modules_to_save" in job else {})


def _loss(config: ConfigReader, version: str, job: dict[str, Any]) -> dict[str, Any]:
    """Full logits up to 1.6; chunked ones since (chunked_nll)."""
    if config.boolean("use_liger_kernel", "use_liger", default=False):
        fields = {} if "fused_kernels" in job else ALL_KERNELS
        return fields | ({"loss": "chunked"} if at_least(version, "1.16") else {})  # TRL's own head stays in place
    kind = config.lowercase("loss_type", default="")
    if kind not in ("", "nll", "chunked_nll"):
        raise config.unsupported("loss_type")
    if at_least(version, "1.16") or kind == "chunked_nll" or (at_least(version, "1.7") and not kind):
        return {"loss": "chunked"}
    return {}


def note_missing_launcher(config: ConfigReader, job: dict[str, Any]) -> None:
    """Note that a recipe by itself does not say how several GPUs share the work."""
    if not config.source.program and job["num_gpus"] > 1 and "strategy" not in job:
        config.note(
            "warning",
            "",
            "the recipe does not say what launches it: DDP is taken; check the command instead, with its accelerate"
            " launch --config_file",
        )


def write(model: str, job: Job) -> ConfigText:
    """TRL's YAML."""
    pairs = trainer_arguments(model, job) | nodes.accelerate(job)
    if job.method != "full":
        pairs |= {
            "use_peft": True,
            **adapter(job, "lora_r", "lora_target_modules", "all-linear", "use_dora", "lora_modules_to_save"),
        }
    if job.quantize == "nf4":
        pairs |= {"load_in_4bit": True, "use_bnb_nested_quant": job.double_quant}
    if job.quantize == "int8":
        pairs |= {"load_in_8bit": True} | reentrant_kwargs(job)
    if job.joins_samples:
        pairs["packing"] = True
    if job.fused_kernels:
        pairs |= liger_pairs(job)
    if job.task is not None:
        pairs |= task_pairs(job)
        pairs = {key: value for key, value in pairs.items() if value is not None}
    presets = ((name, Job.model_validate(fields, strict=False)) for name, fields in ACCELERATE_CONFIGS.items())
    matching = [name for name, preset in presets if _same_engine(job, preset)]
    pairs |= {"accelerate_config": matching[0]} if matching and job.strategy != "ddp" else sharding(job)
    if job.num_gpus == job.num_nodes > 1:  # accelerate starts one process on a node with one GPU, unless told otherwise
        pairs.setdefault("accelerate_config", "multi_gpu")
    command = f"trl {job.task or 'sft'} --config train.yaml {nodes.accelerate_machine(job)}".rstrip()
    notes = (*nodes.notes(job), *task_notes(job))
    return ConfigText(pairs, allocator_variables(job), command, file="train.yaml", notes=notes)


def _same_engine(job: Job, other: Job) -> bool:
    """Whether two jobs run under the same engine with the same settings."""
    engines = ((side.strategy, side.offload, side.fsdp, side.zero) for side in (job, other))
    return len(set(engines)) == 1


UNREAD = {
    "preference training of this kind": (
        "bco", "tpo", "mpo_vlm",
    ),
    f"preference training that generates ({ONLINE_NEAREST})": ("xpo", "nash_md", "online_dpo", "dpo_online"),
    "reinforcement training of this kind": (
        "gspo", "gspo_vlm", "grpo_agent", "async_grpo",
    ),
    f"PPO ({PPO_NEAREST})": ("ppo", "ppo_tldr", "ppo/ppo"),
    f"distillation ({DISTILLATION_NEAREST})": ("gold", "minillm"),
    f"distillation by DistillationTrainer ({BY_TILES})": ("distillation",),
    "training of a process reward model": ("prm",),
}  # fmt: skip
"""What is not read -> its commands, and the names of its scripts (trl/scripts, examples/scripts, 0.9 to 1.16)."""
BARE_SCRIPTS = ("orpo.py", "cpo.py")
"""examples/scripts that load the model by its name alone, whatever the flags say of dtype and quantization."""
SCRIPTS = ("sft_vlm.py", "sft_gpt_oss.py")
"""examples/scripts that take the arguments of ``trl sft``; the others of that folder take none."""
FOLDERS = ("trl/scripts/", "scripts/", "")
"""Where scripts of a command's name lie."""
UNCUT = "sft_vlm.py"
"""Of these the one that sets max_length to None (examples/scripts/sft_vlm.py, 0.12 to 1.16)."""


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(
        *(("trl", name) for name in ("sft", *trl_trainers.TASKS) if name not in ("gkd", "ppo")),  # scripts alone
        *(
            (f"{folder}{name}.py",)
            for name, task in (("sft", "sft"), *trl_trainers.SCRIPTS.items())
            if task != "ppo"  # whose script's name others have too
            for folder in FOLDERS
        ),
    ),
    programs=tuple(
        Program(f"{prefix}{name}.py", unread=kind)
        for kind, names in UNREAD.items()
        for name in names
        for prefix in ("", "run_")
    )
    + tuple(Program(name, frozenset({"model_name_or_path", "dataset_name"})) for name in SCRIPTS)
    + tuple(Program(name, trl_ppo.MARKS) for name in trl_ppo.SCRIPTS),
    unread_commands={("trl", name): kind for kind, names in UNREAD.items() for name in names},
    marks=frozenset(
        {
            "use_peft",
            "dataset_name",
            "lora_target_modules",
            "packing_strategy",
            "accelerate_config",
            "dataset_text_field",
            "teacher_model_name_or_path",
        }
    ),
    inherits=("transformers",),
    tells_tasks=True,
    # scripts/utils.py: TrlParser.parse_args_and_config(fail_with_unknown_args); a script may have arguments of its own
    stops_at_unknown=lambda source: source.command[:1] == ("trl",),
    writers=(Writer("trl", write, ENGINES, tasks=TASKS),),
)
